//! A fleet: the distribution of every figure, and the profiles with outliers.
//!
//! A fleet keeps only the figures of each profile, a few kilobytes, so that thousands fit in
//! memory. Profiles of different processors are never compared with each other.

use std::collections::{BTreeMap, HashMap};

use membound_types::{
    ComparedProfile, FleetFigure, FleetGroup, OddCondition, OddProfile, Outcome, Outlier, Worse,
};
use statrs::function::erf::erfc_inv;

use super::figures::{ProfileFigure, figures};
use super::hints;
use super::noise::{Noise, Uncertain};
use super::side_by_side::is_worse;
use super::view::ProfileView;
use crate::stats::Z95;
use crate::stats::{median, quantile, robust_sigma};

/// Fewest profiles of a processor for reporting outliers.
const MIN_PROFILES: usize = 5;
/// Fewest robust standard deviations of an outlier.
const MIN_SIGMAS: f64 = 5.0;
/// Probability of naming an outlier in a fleet without any, if its figures are normal.
const FALSE_ALARM: f64 = 0.05;
/// Number of profiles from which their own spread measures the scatter of a figure; the stated
/// scatter between runs is then reduced and only keeps identical values from a spread of 0.
const MANY_PROFILES: usize = 16;
/// Relative scatter of a count, so that counts without any variation have a distance as well.
const COUNT_SIGMA: f64 = 0.005;
/// Share of the profiles that must have a figure for its absence to be reported.
const USUAL_SHARE: f64 = 0.9;

/// The data that a fleet keeps of a profile. It can be made on any thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    file: String,
    host: String,
    cpu: String,
    conditions: Vec<(&'static str, String)>,
    figures: Vec<ProfileFigure>,
}

impl Reading {
    /// Extracts the figures and conditions of a profile read from `file`.
    #[must_use]
    pub fn of(file: &str, view: &ProfileView) -> Self {
        let conditions = view.conditions();
        let mut conditions_found = Vec::new();
        let mut add = |name, value: Option<String>| {
            if let Some(value) = value {
                conditions_found.push((name, value));
            }
        };
        let known = |outcome: &Outcome<String>| outcome.known().cloned();
        add("thp", conditions.thp.known().map(ToString::to_string));
        add("governor", known(&conditions.governor));
        let switch = |on: &bool| if *on { "on" } else { "off" }.to_owned();
        add("turbo", conditions.turbo.known().map(switch));
        add(
            "prefetchers off",
            conditions.prefetchers.known().map(|states| {
                let off: Vec<&str> = states
                    .iter()
                    .filter(|(_, on)| !**on)
                    .map(|(name, _)| name.as_str())
                    .collect();
                if off.is_empty() {
                    "none".to_owned()
                } else {
                    off.join(", ")
                }
            }),
        );
        let machine = conditions.hypervisor.clone();
        add(
            "hypervisor",
            Some(machine.unwrap_or_else(|| "none".to_owned())),
        );
        add("kernel", Some(conditions.kernel.clone()));
        add("CPUs", Some(view.cpu().online.len().to_string()));
        Self {
            file: file.to_owned(),
            host: view.host().to_owned(),
            cpu: view.cpu_name(),
            conditions: conditions_found,
            figures: figures(view),
        }
    }
}

/// Everything about a figure that is the same in all profiles.
#[derive(Clone, Debug)]
struct Meta {
    name: String,
    part: &'static str,
    title: String,
    unit: &'static str,
    worse: Worse,
    noise: Noise,
}

#[derive(Clone, Debug)]
struct Member {
    file: String,
    host: String,
    conditions: Vec<(&'static str, String)>,
    /// (Index of the figure in [`Fleet::metas`], value), by index.
    values: Vec<(usize, f64)>,
}

impl Member {
    fn value(&self, figure: usize) -> Option<f64> {
        let place = self
            .values
            .binary_search_by_key(&figure, |(index, _)| *index);
        place.ok().map(|place| self.values[place].1)
    }
}

/// Profiles added one after the other, grouped by processor.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    metas: Vec<Meta>,
    places: HashMap<String, usize>,
    groups: BTreeMap<String, Vec<Member>>,
}

/// Median and spread of a figure over a group.
#[derive(Clone, Copy, Debug)]
struct Spread {
    median: f64,
    /// Robust standard deviation: relative to the median if that is positive, else in
    /// the figure's unit.
    sigma: f64,
    /// `sigma`, but at least the scatter between runs that is assumed; distances are in this unit.
    judged: f64,
}

impl Spread {
    fn of(values: &[f64], noise: Noise) -> Option<Self> {
        let middle = median(values)?;
        let (relative, absolute) = match noise {
            Noise::Exact => (COUNT_SIGMA, 0.0),
            other => other.floor(),
        };
        let granted = if values.len() < MANY_PROFILES {
            1.0
        } else {
            1.0 / 3.0
        };
        if middle > 0.0 {
            // A value of 0 counts as very far, not as infinitely far.
            let logs: Vec<f64> = values
                .iter()
                .map(|value| (value / middle).max(1e-6).ln())
                .collect();
            let sigma = robust_sigma(&logs)?;
            let floor = relative.hypot(absolute / middle) * granted;
            Some(Self {
                median: middle,
                sigma,
                judged: sigma.max(floor),
            })
        } else {
            let sigma = robust_sigma(values)?;
            Some(Self {
                median: middle,
                sigma,
                judged: sigma.max(absolute * granted),
            })
        }
    }

    /// Distance of a value from the median in robust standard deviations; `None` without any scatter.
    fn distance(&self, value: f64) -> Option<f64> {
        if self.judged <= 0.0 {
            return None;
        }
        Some(if self.median > 0.0 {
            (value / self.median).max(1e-6).ln() / self.judged
        } else {
            (value - self.median) / self.judged
        })
    }

    fn in_unit(&self) -> f64 {
        if self.median > 0.0 {
            self.sigma * self.median
        } else {
            self.sigma
        }
    }
}

impl Fleet {
    /// Adds a profile.
    pub fn add(&mut self, reading: Reading) {
        let mut values: Vec<(usize, f64)> = reading
            .figures
            .into_iter()
            .map(|figure| {
                let value = figure.uncertain.value;
                let place = match self.places.get(&figure.name) {
                    Some(place) => *place,
                    None => {
                        self.metas.push(Meta {
                            name: figure.name.clone(),
                            part: figure.part,
                            title: figure.title,
                            unit: figure.unit,
                            worse: figure.worse,
                            noise: figure.uncertain.noise,
                        });
                        self.places.insert(figure.name, self.metas.len() - 1);
                        self.metas.len() - 1
                    }
                };
                (place, value)
            })
            .collect();
        values.sort_by_key(|(place, _)| *place);
        self.groups.entry(reading.cpu).or_default().push(Member {
            file: reading.file,
            host: reading.host,
            conditions: reading.conditions,
            values,
        });
    }

    /// True if no profile was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The median of the profiles with processor `cpu`, as a profile to compare with.
    ///
    /// The spread of the fleet replaces the intervals. `None` without such profiles.
    #[must_use]
    pub fn reference(&self, cpu: &str) -> Option<(ComparedProfile, Vec<ProfileFigure>)> {
        let members = self.groups.get(cpu)?;
        let figures = self
            .spreads(members)
            .into_iter()
            .map(|(place, spread, _)| {
                let meta = &self.metas[place];
                let half = Z95 * spread.in_unit();
                ProfileFigure {
                    name: meta.name.clone(),
                    part: meta.part,
                    title: meta.title.clone(),
                    unit: meta.unit,
                    worse: meta.worse,
                    uncertain: Uncertain {
                        value: spread.median,
                        interval: Some((spread.median - half, spread.median + half)),
                        noise: meta.noise,
                    },
                }
            })
            .collect();
        let profile = ComparedProfile {
            name: format!("median of {}", members.len()),
            file: String::new(),
            host: String::new(),
            date: String::new(),
            cpu: cpu.to_owned(),
            kernel: String::new(),
            hypervisor: None,
            labels: BTreeMap::new(),
            incomplete: false,
            median_of: Some(members.len()),
        };
        Some((profile, figures))
    }

    /// The processor of most profiles; of several, the first by name.
    #[must_use]
    pub fn largest_group(&self) -> Option<&str> {
        self.groups
            .iter()
            .rev()
            .max_by_key(|(_, members)| members.len())
            .map(|(cpu, _)| cpu.as_str())
    }

    /// Distributions and outliers, one group per processor, the largest group first.
    ///
    /// An outlier is farther from the median than the group's limit of robust standard
    /// deviations, which grows with the number of values, and than `limit_relative`, a share.
    #[must_use]
    pub fn finish(&self, limit_relative: f64) -> Vec<FleetGroup> {
        let mut groups: Vec<FleetGroup> = self
            .groups
            .iter()
            .map(|(cpu, members)| self.group(cpu, members, limit_relative))
            .collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.profiles));
        groups
    }

    /// For every figure of any member: its index, spread and values.
    fn spreads(&self, members: &[Member]) -> Vec<(usize, Spread, Vec<f64>)> {
        let mut columns: Vec<Vec<f64>> = vec![Vec::new(); self.metas.len()];
        for member in members {
            for (place, value) in &member.values {
                columns[*place].push(*value);
            }
        }
        columns
            .into_iter()
            .enumerate()
            .filter_map(|(place, values)| {
                let spread = Spread::of(&values, self.metas[place].noise)?;
                Some((place, spread, values))
            })
            .collect()
    }

    fn group(&self, cpu: &str, members: &[Member], limit_relative: f64) -> FleetGroup {
        let spreads = self.spreads(members);
        let limit = limit_sigmas(members.len(), spreads.len());
        let usual = usual_conditions(members);
        let mut odd: Vec<OddProfile> = match limit {
            Some(limit) => members
                .iter()
                .filter_map(|member| {
                    self.odd(
                        member,
                        members.len(),
                        &spreads,
                        limit,
                        limit_relative,
                        &usual,
                    )
                })
                .collect(),
            None => Vec::new(),
        };
        let badness = |profile: &OddProfile| {
            let worse = profile.outliers.iter().filter(|outlier| outlier.worse);
            let far = profile.outliers.first().map_or(0.0, |it| it.sigmas.abs());
            (worse.count(), far)
        };
        odd.sort_by(|a, b| {
            let (a_count, a_far) = badness(a);
            let (b_count, b_far) = badness(b);
            b_count.cmp(&a_count).then(b_far.total_cmp(&a_far))
        });
        FleetGroup {
            cpu: cpu.to_owned(),
            profiles: members.len(),
            limit_sigmas: limit,
            limit_relative,
            figures: spreads
                .iter()
                .map(|(place, spread, values)| {
                    let meta = &self.metas[*place];
                    let at = |share| quantile(values, share).unwrap_or(spread.median);
                    FleetFigure {
                        name: meta.name.clone(),
                        part: meta.part.to_owned(),
                        title: meta.title.clone(),
                        unit: meta.unit.to_owned(),
                        worse: meta.worse,
                        count: values.len(),
                        median: spread.median,
                        robust_sigma: spread.in_unit(),
                        p5: at(0.05),
                        p95: at(0.95),
                    }
                })
                .collect(),
            odd,
        }
    }

    fn odd(
        &self,
        member: &Member,
        members: usize,
        spreads: &[(usize, Spread, Vec<f64>)],
        limit: f64,
        limit_relative: f64,
        usual: &BTreeMap<&'static str, String>,
    ) -> Option<OddProfile> {
        let mut outliers = Vec::new();
        let mut absent = Vec::new();
        let enough = (USUAL_SHARE * members as f64).ceil() as usize;
        for (place, spread, values) in spreads {
            let meta = &self.metas[*place];
            let Some(value) = member.value(*place) else {
                if values.len() >= enough {
                    absent.push(*place);
                }
                continue;
            };
            let Some(sigmas) = spread.distance(value) else {
                continue;
            };
            let relative = if spread.median > 0.0 {
                value / spread.median - 1.0
            } else {
                f64::INFINITY
            };
            if sigmas.abs() > limit && relative.abs() > limit_relative && relative.is_finite() {
                outliers.push(Outlier {
                    name: meta.name.clone(),
                    title: meta.title.clone(),
                    unit: meta.unit.to_owned(),
                    value,
                    median: spread.median,
                    sigmas,
                    relative,
                    worse: is_worse(meta.worse, value - spread.median),
                    neutral: meta.worse == Worse::Neither,
                });
            }
        }
        let missing = self.missing(&absent, spreads, enough);
        if outliers.is_empty() && missing.is_empty() {
            return None;
        }
        outliers.sort_by(|a, b| {
            b.worse
                .cmp(&a.worse)
                .then(b.sigmas.abs().total_cmp(&a.sigmas.abs()))
        });
        let values: HashMap<&str, (f64, f64)> = spreads
            .iter()
            .filter_map(|(place, spread, _)| {
                let value = member.value(*place)?;
                Some((self.metas[*place].name.as_str(), (value, spread.median)))
            })
            .collect();
        Some(OddProfile {
            file: member.file.clone(),
            host: member.host.clone(),
            hints: hints::of_outliers(&outliers, &values),
            outliers,
            missing,
            conditions: unusual_conditions(member, usual),
        })
    }

    /// Names of absent figures; a part that is absent as a whole is named once.
    fn missing(
        &self,
        absent: &[usize],
        spreads: &[(usize, Spread, Vec<f64>)],
        enough: usize,
    ) -> Vec<String> {
        let mut of_part: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for place in absent {
            let meta = &self.metas[*place];
            of_part.entry(meta.part).or_default().push(&meta.name);
        }
        let usual = |part: &str| {
            spreads
                .iter()
                .filter(|(place, _, values)| {
                    self.metas[*place].part == part && values.len() >= enough
                })
                .count()
        };
        of_part
            .into_iter()
            .flat_map(|(part, names)| {
                if names.len() == usual(part) {
                    vec![format!("the part {part}")]
                } else {
                    names.into_iter().map(str::to_owned).collect()
                }
            })
            .collect()
    }
}

/// Robust standard deviations beyond which one of `profiles` × `figures` values is an
/// outlier: five, more if that many values reach five by chance, and more in small fleets
/// whose spread is itself uncertain. `None` with too few profiles.
fn limit_sigmas(profiles: usize, figures: usize) -> Option<f64> {
    if profiles < MIN_PROFILES {
        return None;
    }
    let values = (profiles * figures.max(1)) as f64;
    let by_chance = std::f64::consts::SQRT_2 * erfc_inv(FALSE_ALARM / values);
    Some(by_chance.max(MIN_SIGMAS) * (1.0 + 8.0 / profiles as f64).sqrt())
}

/// Conditions of `member` that differ from the usual ones.
fn unusual_conditions(
    member: &Member,
    usual: &BTreeMap<&'static str, String>,
) -> Vec<OddCondition> {
    let conditions = member.conditions.iter();
    conditions
        .filter_map(|(name, value)| {
            let usual = usual.get(name)?;
            (usual != value).then(|| OddCondition {
                name: (*name).to_owned(),
                value: value.clone(),
                usual: usual.clone(),
            })
        })
        .collect()
}

/// Conditions that more than half of the members have in common.
fn usual_conditions(members: &[Member]) -> BTreeMap<&'static str, String> {
    let mut counts: BTreeMap<(&'static str, &str), usize> = BTreeMap::new();
    for member in members {
        for (name, value) in &member.conditions {
            *counts.entry((name, value)).or_default() += 1;
        }
    }
    counts
        .into_iter()
        .filter(|(_, count)| 2 * count > members.len())
        .map(|((name, value), _)| (name, value.to_owned()))
        .collect()
}
