//! Decides whether threads contend for a line, and for which bytes.
//!
//! Only about one access in a thousand is observed, so all conditions are counts: two threads observed
//! often, many stores by one of them, and many alternations between the two. A buffer that is handed over,
//! memory that one thread freed and another allocated, and data written by one thread before all others
//! read it cause no alternations.

use std::ops::Range;

use membound_run::{ObjectId, RunData, ThreadId};

use super::evidence::{Line, Observation};
use crate::Thresholds;

/// Fewest observations of a byte that make a thread its user, which must also be …
const MIN_BYTE_ACCESSES: u64 = 2;

/// … this share of the thread's observations on the line, so that initialising an element does not count as
/// using it.
const MIN_BYTE_ACCESS_SHARE: f64 = 0.02;

/// Observations of another thread, on either side of one in time, whose bytes tell what conflicts with it. Work
/// moves between threads, and its memory with it: over a whole run each thread may use all bytes of a line of
/// which two never use the same ones at a time.
const NEIGHBOURS: usize = 4;

/// Use of a line by one thread.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct User {
    pub thread: ThreadId,
    pub loads: u64,
    pub stores: u64,
    /// Offset of the first byte that it uses.
    pub from: u32,
    /// Offset behind the last byte that it uses.
    pub to: u32,
    /// By byte: number of observed accesses, and of observed stores.
    touched: Vec<(u64, u64)>,
}

/// Bytes of a line that one thread alone writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnBytes {
    pub thread: ThreadId,
    /// Offsets, from the first to behind the last.
    pub bytes: Range<u32>,
    /// Whether other threads read them.
    pub are_read: bool,
}

/// Conflict of an observation with another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// No conflict.
    None,
    /// Another thread uses other bytes of the line, and one of the two writes.
    OtherBytes,
    /// Another thread uses the same bytes, and one of the two writes.
    SameBytes,
}

/// Contention for one line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contention {
    /// Threads that use the line, by id.
    pub users: Vec<User>,
    /// Conflict of each observation.
    pub conflicts: Vec<Conflict>,
    /// Alternations between the writer and other threads.
    pub alternations: u64,
    /// True if threads use different bytes.
    pub is_false: bool,
    /// True if threads use the same bytes.
    pub is_true: bool,
}

/// Contention for `line`, which has `line_bytes` bytes; `None` if there is none.
pub(crate) fn judge(
    run: &RunData,
    line: &Line,
    line_bytes: u32,
    thresholds: &Thresholds,
) -> Option<Contention> {
    let mut users = users(&line.observations, line_bytes);
    users.retain(|user| user.accesses() >= thresholds.sharing_accesses);
    let shared = while_shared(&line.observations, &users)?;
    users = self::users(shared, line_bytes);
    users.retain(|user| user.accesses() >= thresholds.sharing_accesses);
    if users.len() < 2 {
        return None;
    }
    let alternations = users
        .iter()
        .filter(|user| user.stores >= thresholds.sharing_accesses)
        .map(|writer| alternations(run, shared, writer.thread, &users))
        .max()?;
    if alternations < thresholds.sharing_turns {
        return None;
    }
    let span = (shared.first()?.t_ns, shared.last()?.t_ns);
    let by_user: Vec<Vec<&Observation>> = users
        .iter()
        .map(|user| {
            let of_user = shared.iter().filter(|it| it.thread == user.thread);
            of_user.collect()
        })
        .collect();
    let conflicts: Vec<Conflict> = line
        .observations
        .iter()
        .map(|one| {
            if (span.0..=span.1).contains(&one.t_ns) {
                conflict(one, &users, &by_user)
            } else {
                Conflict::None
            }
        })
        .collect();
    let count = |kind: Conflict| conflicts.iter().filter(|&&of| of == kind).count() as f64;
    let (other_bytes, same) = (count(Conflict::OtherBytes), count(Conflict::SameBytes));
    let is_significant = |of: f64| of > 0.0 && of >= thresholds.sharing_kind * (other_bytes + same);
    let several = |kind: Conflict| {
        let mut threads = line
            .observations
            .iter()
            .zip(&conflicts)
            .filter(|(_, of)| **of == kind)
            .map(|(one, _)| one.thread);
        threads
            .next()
            .is_some_and(|first| threads.any(|thread| thread != first))
    };
    let is_false = is_significant(other_bytes) && several(Conflict::OtherBytes);
    let is_true = is_significant(same) && several(Conflict::SameBytes);
    (is_false || is_true).then_some(Contention {
        users,
        conflicts,
        alternations,
        is_false,
        is_true,
    })
}

impl Contention {
    /// For each thread that alone writes some bytes, those bytes, in order of the threads' ids. If other threads read only
    /// a part of them, that part is left out.
    pub(crate) fn own_bytes(&self) -> Vec<OwnBytes> {
        let own = |user: &User| {
            let others = || self.users.iter().filter(|it| it.thread != user.thread);
            let is_own = |byte: &usize| {
                user.touched[*byte].1 > 0 && others().all(|other| other.touched[*byte].1 == 0)
            };
            let is_unread = |byte: &usize| others().all(|other| other.touched[*byte].0 == 0);
            let mut bytes: Vec<usize> = (0..user.touched.len()).filter(is_own).collect();
            let are_read = !bytes.iter().any(is_unread);
            bytes.retain(|byte| are_read || is_unread(byte));
            let (first, last) = (bytes.first()?, bytes.last()?);
            Some(OwnBytes {
                thread: user.thread,
                bytes: *first as u32..*last as u32 + 1,
                are_read,
            })
        };
        self.users.iter().filter_map(own).collect()
    }

    /// Number of threads that write to the line.
    pub(crate) fn writers(&self) -> usize {
        let writes = |user: &&User| user.touched.iter().any(|&(_, written)| written > 0);
        self.users.iter().filter(writes).count()
    }
}

impl User {
    /// Lower bound of its observed accesses: an access that loads and stores counts as both.
    const fn accesses(&self) -> u64 {
        if self.loads > self.stores {
            self.loads
        } else {
            self.stores
        }
    }
}

/// The part of `observations` during which at least two of `users` were active: accesses before the second
/// came, or after only one was left, cannot conflict.
fn while_shared<'a>(observations: &'a [Observation], users: &[User]) -> Option<&'a [Observation]> {
    let mut firsts: Vec<usize> = Vec::new();
    let mut lasts: Vec<usize> = Vec::new();
    for user in users {
        let is_theirs = |one: &Observation| one.thread == user.thread;
        firsts.extend(observations.iter().position(is_theirs));
        lasts.extend(observations.iter().rposition(is_theirs));
    }
    firsts.sort_unstable();
    lasts.sort_unstable();
    let (from, to) = (*firsts.get(1)?, *lasts.get(lasts.len().checked_sub(2)?)?);
    observations.get(from..=to)
}

/// Threads observed on the line.
fn users(observations: &[Observation], line_bytes: u32) -> Vec<User> {
    let mut users: Vec<User> = Vec::new();
    for one in observations {
        let place = match users.binary_search_by_key(&one.thread, |user| user.thread) {
            Ok(place) => place,
            Err(place) => {
                users.insert(
                    place,
                    User {
                        thread: one.thread,
                        loads: 0,
                        stores: 0,
                        from: one.from,
                        to: one.to,
                        touched: vec![(0, 0); line_bytes as usize],
                    },
                );
                place
            }
        };
        let user = &mut users[place];
        user.loads += u64::from(one.loads);
        user.stores += u64::from(one.stores);
        for byte in &mut user.touched[one.from as usize..one.to as usize] {
            byte.0 += 1;
            byte.1 += u64::from(one.stores);
        }
    }
    for user in &mut users {
        let accesses = user.accesses();
        let least = MIN_BYTE_ACCESSES.max((accesses as f64 * MIN_BYTE_ACCESS_SHARE).ceil() as u64);
        for byte in &mut user.touched {
            *byte = (
                if byte.0 >= least { byte.0 } else { 0 },
                if byte.1 >= least { byte.1 } else { 0 },
            );
        }
        let used = |byte: &(u64, u64)| byte.0 > 0;
        if let Some(first) = user.touched.iter().position(used) {
            let last = user.touched.iter().rposition(used).unwrap_or(first);
            (user.from, user.to) = (first as u32, last as u32 + 1);
        }
    }
    users
}

/// Number of alternations between stores of `writer` and accesses of other users, as long as neither side's
/// memory was allocated anew or freed in between.
fn alternations(
    run: &RunData,
    observations: &[Observation],
    writer: ThreadId,
    users: &[User],
) -> u64 {
    let is_user = |thread| {
        users
            .binary_search_by_key(&thread, |user| user.thread)
            .is_ok()
    };
    let mut alternations = 0;
    let mut last: Option<&Observation> = None;
    for one in observations {
        let own = one.thread == writer;
        if (own && !one.stores) || !is_user(one.thread) {
            continue;
        }
        if let Some(last) = last {
            let changed = (last.thread == writer) != own;
            alternations += u64::from(changed && both_alive(run, last, one));
        }
        last = Some(one);
    }
    alternations
}

/// True if the object of each of the two observations existed at the time of the other.
fn both_alive(run: &RunData, first: &Observation, then: &Observation) -> bool {
    let existed = |object: Option<ObjectId>| {
        object.is_none_or(|id| {
            let object = &run.objects[id.index()];
            object.allocated_ns.is_none_or(|from| from <= first.t_ns)
                && object.freed_ns.is_none_or(|until| until >= then.t_ns)
        })
    };
    existed(first.object) && existed(then.object)
}

fn conflict(one: &Observation, users: &[User], by_user: &[Vec<&Observation>]) -> Conflict {
    if !users.iter().any(|user| user.thread == one.thread) {
        return Conflict::None;
    }
    let mut other_bytes = false;
    let others = users.iter().zip(by_user);
    for (other, observed) in others.filter(|(user, _)| user.thread != one.thread) {
        let bytes = &other.touched[one.from as usize..one.to as usize];
        let same = bytes
            .iter()
            .any(|&(touched, written)| written > 0 || (one.stores && touched > 0));
        if same && meets_nearby(one, observed) {
            return Conflict::SameBytes;
        }
        other_bytes |= one.stores || other.touched.iter().any(|&(_, written)| written > 0);
    }
    if other_bytes {
        Conflict::OtherBytes
    } else {
        Conflict::None
    }
}

/// True if one of the nearest of another thread's observations, which are in order of time, is of the same bytes.
fn meets_nearby(one: &Observation, observed: &[&Observation]) -> bool {
    let next = observed.partition_point(|it| it.t_ns < one.t_ns);
    let near = next.saturating_sub(NEIGHBOURS)..observed.len().min(next + NEIGHBOURS);
    let mut near = observed[near].iter();
    near.any(|it| it.meets(&(one.from..one.to)))
}
