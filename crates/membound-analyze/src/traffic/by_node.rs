//! Modelled traffic of each node's memory and between nodes. The cache model gives the bytes of an access,
//! the page's node gives the memory, and the thread's node gives the other end of the transfer.

use std::collections::BTreeMap;

use membound_types::{BandwidthDomain, Basis};
use rustc_hash::FxHashMap;

use super::burst_traffic::{BurstTraffic, Bytes, function_of};
use super::caches::Caches;
use super::domain::{self, Timeline};
use super::node_or_link::NodeOrLink;
use super::rates::Rates;
use crate::context::Context;
use crate::groups::GroupId;
use crate::numa;
use crate::places::{FunctionId, LineId};

/// Distribution of each object's pages over nodes, as threads of each node use them.
struct PageNodes {
    /// By object and node of the thread: share of the accesses that go to each node.
    of_user: FxHashMap<(GroupId, u16), Vec<f64>>,
    /// By object: the same for the threads of all nodes together.
    of_all: FxHashMap<GroupId, Vec<f64>>,
}

impl PageNodes {
    fn new(context: &Context<'_>, nodes: usize) -> Self {
        let mut page_nodes = Self {
            of_user: FxHashMap::default(),
            of_all: FxHashMap::default(),
        };
        for sighting in numa::sightings(context) {
            let of_user = page_nodes.of_user.entry((sighting.group, sighting.from));
            let of_all = page_nodes.of_all.entry(sighting.group);
            for shares in [
                of_user.or_insert_with(|| vec![0.0; nodes]),
                of_all.or_insert_with(|| vec![0.0; nodes]),
            ] {
                shares[usize::from(sighting.to)] += sighting.weight;
            }
        }
        for shares in page_nodes
            .of_user
            .values_mut()
            .chain(page_nodes.of_all.values_mut())
        {
            let sum: f64 = shares.iter().sum();
            shares.iter_mut().for_each(|share| *share /= sum);
        }
        page_nodes
    }

    /// Shares by node of the pages of `group` that threads on node `user` use; for all threads if none were
    /// seen on `user`.
    fn of(&self, group: GroupId, user: u16) -> Option<&Vec<f64>> {
        let of_user = self.of_user.get(&(group, user));
        of_user.or_else(|| self.of_all.get(&group))
    }
}

/// Traffic by node and between nodes.
pub(crate) struct ByNode {
    pub domains: Vec<BandwidthDomain>,
    /// Share of all modelled bytes whose memory has an unknown node.
    pub unknown_node_share: f64,
}

/// Bytes through each place per repetition of what bursts recorded of a function, for threads of one node.
type Through = BTreeMap<NodeOrLink, Bytes>;

/// Models the traffic by node; `None` on a machine with one node, or if the nodes of CPUs are unknown.
pub(crate) fn by_node(
    context: &Context<'_>,
    caches: &Caches,
    burst_traffic: &BurstTraffic,
    rates: &Rates,
) -> Option<ByNode> {
    let run = context.run;
    let nodes = numa::nodes(run);
    if nodes <= 1 || run.meta.cpu_nodes.is_empty() {
        return None;
    }
    let page_nodes = PageNodes::new(context, nodes);
    let of_function = bytes_by_function(context, burst_traffic);
    let mut through: FxHashMap<(FunctionId, u16), (Through, f64)> = FxHashMap::default();
    let mut timelines: BTreeMap<NodeOrLink, Timeline> = BTreeMap::new();
    // By function and node: how often the function repeated what bursts recorded.
    let mut repeated: BTreeMap<(FunctionId, u16), f64> = BTreeMap::new();
    let (mut all, mut on_unknown_node) = (0.0, 0.0);
    domain::each_recorded(context, burst_traffic, rates, |recorded| {
        all += recorded.bytes.total() * recorded.times;
        let Some(user) = numa::node_of_cpu(run, recorded.sample.cpu) else {
            on_unknown_node += recorded.bytes.total() * recorded.times;
            return;
        };
        let key = (recorded.function, user);
        *repeated.entry(key).or_default() += recorded.times;
        let (places, without) = through.entry(key).or_insert_with(|| {
            let empty = BTreeMap::new();
            let groups = of_function.get(&recorded.function).unwrap_or(&empty);
            places_of(&page_nodes, groups, user)
        });
        on_unknown_node += *without * recorded.times;
        for (place, bytes) in places {
            let mut moved = Bytes::default();
            moved.add(*bytes, recorded.times);
            timelines
                .entry(*place)
                .or_insert_with(|| Timeline::new(context))
                .spread(recorded.begun_ns(), recorded.sample.t_ns, moved);
        }
    });
    let mut causes = Causes::new(context, burst_traffic, &page_nodes, &repeated);
    // A place without traffic is reported with 0.
    for from in 0..nodes as u16 {
        let other_nodes = (0..nodes as u16).filter(|to| *to != from);
        let links = other_nodes.map(|to| NodeOrLink::Link { from, to });
        for place in links.chain([NodeOrLink::Dram(from)]) {
            timelines
                .entry(place)
                .or_insert_with(|| Timeline::new(context));
        }
    }
    let domains = timelines
        .into_iter()
        .map(|(place, timeline)| {
            let most = caches.most_at(place, timeline.written());
            let mut domain = timeline.domain(&place.to_string(), Basis::Modelled, most);
            let (objects, lines) = causes.take(place);
            domain.objects =
                domain::named(objects, |group| context.groups.get(*group).name.clone());
            domain.lines = domain::named(lines, |line| context.places.line(*line).name.clone());
            domain
        })
        .collect();
    Some(ByNode {
        domains,
        unknown_node_share: if all > 0.0 {
            on_unknown_node / all
        } else {
            0.0
        },
    })
}

/// By function: bytes moved for each object, as recorded by bursts.
fn bytes_by_function(
    context: &Context<'_>,
    burst_traffic: &BurstTraffic,
) -> BTreeMap<FunctionId, BTreeMap<GroupId, Bytes>> {
    let mut of_function: BTreeMap<FunctionId, BTreeMap<GroupId, Bytes>> = BTreeMap::new();
    for (site, of_site) in &burst_traffic.sites {
        let groups = of_function.entry(function_of(context, *site)).or_default();
        for (group, bytes) in &of_site.bytes {
            groups.entry(*group).or_default().add(*bytes, 1.0);
        }
    }
    of_function
}

/// Bytes through each place when a thread on node `user` moves the bytes of `groups`, and the bytes of
/// objects whose pages have unknown nodes.
fn places_of(
    page_nodes: &PageNodes,
    groups: &BTreeMap<GroupId, Bytes>,
    user: u16,
) -> (Through, f64) {
    let mut through = Through::new();
    let mut without = 0.0;
    for (group, bytes) in groups {
        let Some(shares) = page_nodes.of(*group, user) else {
            without += bytes.total();
            continue;
        };
        for (home, share) in (0_u16..).zip(shares).filter(|(_, share)| **share > 0.0) {
            for (place, moved) in places(*bytes, home, user) {
                through.entry(place).or_default().add(moved, *share);
            }
        }
    }
    (through, without)
}

/// Places that bytes of node `home` go through when a thread on node `user` reads and writes them.
fn places(bytes: Bytes, home: u16, user: u16) -> Vec<(NodeOrLink, Bytes)> {
    let mut places = vec![(NodeOrLink::Dram(home), bytes)];
    if home != user {
        let link =
            |from, to, read, written| (NodeOrLink::Link { from, to }, Bytes { read, written });
        places.push(link(home, user, bytes.read, 0.0));
        places.push(link(user, home, 0.0, bytes.written));
    }
    places
}

/// By place: bytes by object, and bytes by line.
struct Causes {
    objects: BTreeMap<NodeOrLink, BTreeMap<GroupId, f64>>,
    lines: BTreeMap<NodeOrLink, BTreeMap<LineId, f64>>,
}

impl Causes {
    fn new(
        context: &Context<'_>,
        burst_traffic: &BurstTraffic,
        page_nodes: &PageNodes,
        repeated: &BTreeMap<(FunctionId, u16), f64>,
    ) -> Self {
        let mut causes = Self {
            objects: BTreeMap::new(),
            lines: BTreeMap::new(),
        };
        for (site, of_site) in &burst_traffic.sites {
            let function = function_of(context, *site);
            let line = context
                .places
                .line_of(context.run.sites[site.index()].frame);
            let users = repeated.range((function, 0)..=(function, u16::MAX));
            for ((_, user), times) in users {
                for (group, bytes) in &of_site.bytes {
                    let one = BTreeMap::from([(*group, *bytes)]);
                    for (place, moved) in places_of(page_nodes, &one, *user).0 {
                        let bytes = moved.total() * times;
                        let objects = causes.objects.entry(place).or_default();
                        *objects.entry(*group).or_default() += bytes;
                        let lines = causes.lines.entry(place).or_default();
                        *lines.entry(line).or_default() += bytes;
                    }
                }
            }
        }
        causes
    }

    fn take(&mut self, place: NodeOrLink) -> (BTreeMap<GroupId, f64>, BTreeMap<LineId, f64>) {
        (
            self.objects.remove(&place).unwrap_or_default(),
            self.lines.remove(&place).unwrap_or_default(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_comes_and_what_is_written_goes() {
        let bytes = Bytes {
            read: 24.0,
            written: 8.0,
        };
        assert_eq!(places(bytes, 1, 1), [(NodeOrLink::Dram(1), bytes)]);
        let link =
            |from, to, read, written| (NodeOrLink::Link { from, to }, Bytes { read, written });
        assert_eq!(
            places(bytes, 0, 1),
            [
                (NodeOrLink::Dram(0), bytes),
                link(0, 1, 24.0, 0.0),
                link(1, 0, 0.0, 8.0)
            ]
        );
    }
}
