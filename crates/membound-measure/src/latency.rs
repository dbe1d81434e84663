//! `measure latency`: a dependent chase over size × stride × pattern × page × node × copies.
//!
//! Points are visited in rounds, upwards and downwards in turn, so that a slow phase of
//! the machine hits a few visits of many points instead of all visits of one. Between the
//! first rounds sizes are added where the curve bends. A point is done when its interval
//! is within [`LatencyConfig::TARGET`]; the series is done when all points are, or its
//! time is spent.

mod config;
mod copy;
mod series;

use std::time::Instant;

use membound_types::{Access, CpuId, Latency, LatencyPoint, NodePolicy, PageKind, Pattern};

pub use config::LatencyConfig;
pub use series::Refine;

use crate::{ChaseConfig, Error, Session, room};
use copy::Arena;

/// Measures every combination. [`Latency::skipped`] names the combinations that are not available;
/// a cancelled run returns the points that have samples.
///
/// # Errors
/// [`Error::Invalid`] for sizes and strides that cannot be used, [`Error::Memory`] for given sizes
/// that do not fit, [`Error::TooManyThreads`]; the reason itself when no combination at all could
/// be measured.
pub fn measure(
    session: &Session<'_>,
    config: &LatencyConfig,
    refine: &Refine<'_>,
) -> Result<Latency, Error> {
    let started = Instant::now();
    check(session, config)?;
    let mut latency = Latency::default();
    let mut last_error = None;
    let groups = groups(config);
    let series_in_group = shapes(config).count();
    let series_count = groups.len() * series_in_group;
    for (index, group) in groups.into_iter().enumerate() {
        if session.cancelled() {
            break;
        }
        let (page, node, threads) = group;
        let share = |series: usize, within: f64| {
            ((index * series_in_group + series) as f64 + within) / series_count as f64
        };
        session
            .progress
            .at(share(0, 0.0), &format!("latency: mapping {page} pages"));
        let mapping = Instant::now();
        let cpus = session.cpus_for(threads, config.spread)?;
        let bytes = largest_bytes(session, config, (page, node), &cpus);
        let arenas: Result<Vec<Arena>, Error> = cpus
            .into_iter()
            .map(|cpu| Arena::new(session, cpu, page, node, bytes))
            .collect();
        let mut arenas = match arenas {
            Ok(arenas) => arenas,
            Err(_) if session.cancelled() => break,
            // What was measured before is kept, regardless of the error.
            Err(error) => {
                latency.skipped.push(format!(
                    "{page} pages on node {node}, copies: {threads}: {error}"
                ));
                last_error = Some(error);
                continue;
            }
        };
        if config.sizes.is_none() && bytes < config.max_bytes {
            latency.skipped.push(format!(
                "{page} pages on node {node}, copies: {threads}: sizes end at {bytes} bytes instead of {}, because no more memory is free",
                config.max_bytes
            ));
        }
        // Mapping counts as the series' time, up to half of it.
        let each = mapping.elapsed() / u32::try_from(series_in_group).unwrap_or(u32::MAX).max(1);
        let left = config.series_budget.saturating_sub(each);
        let config = LatencyConfig {
            series_budget: left.max(config.series_budget / 2),
            ..config.clone()
        };
        let error = measure_group(
            session,
            &config,
            group,
            &mut arenas,
            refine,
            &share,
            &mut latency,
        );
        last_error = error.or(last_error);
    }
    latency.elapsed_s = started.elapsed().as_secs_f64();
    match last_error {
        Some(error) if latency.points.is_empty() && !session.cancelled() => Err(error),
        _ => Ok(latency),
    }
}

/// Measures all series of one group into `latency`; returns the last error.
///
/// `share(done, part)` is the share of the whole measurement that is done when `done` series of the group have ended and
/// `part` of the next one is done.
fn measure_group(
    session: &Session<'_>,
    config: &LatencyConfig,
    (page, node, threads): (PageKind, NodePolicy, u32),
    arenas: &mut [Arena],
    refine: &Refine<'_>,
    share: &dyn Fn(usize, f64) -> f64,
    latency: &mut Latency,
) -> Option<Error> {
    let mut last_error = None;
    for (index, (pattern, access, stride)) in shapes(config).enumerate() {
        let key = series::Key {
            page,
            node,
            threads,
            pattern,
            access,
            stride,
        };
        let within = |within: f64| share(index, within);
        let reason = match series::measure(session, config, key, arenas, refine, &within) {
            Ok(points) if points.is_empty() && !session.cancelled() => {
                "no element fits the memory that is free".to_owned()
            }
            Ok(points) => {
                latency.points.extend(points);
                continue;
            }
            Err(error) => {
                let reason = error.to_string();
                last_error = Some(error);
                reason
            }
        };
        latency.skipped.push(format!(
            "{page} pages on node {node}, copies: {threads}, stride {stride}: {reason}"
        ));
    }
    last_error
}

/// Checks that the values are usable and that the machine has enough CPUs and memory.
///
/// # Errors
/// [`Error::Invalid`] for values that cannot be used, [`Error::TooManyThreads`], [`Error::Memory`]
/// for given sizes that do not fit.
pub fn check(session: &Session<'_>, config: &LatencyConfig) -> Result<(), Error> {
    for (pattern, access, stride_bytes) in shapes(config) {
        ChaseConfig {
            pattern,
            access,
            stride_bytes,
            seed: 0,
        }
        .check()?;
    }
    let most = config.threads.iter().copied().max().unwrap_or(1);
    if config.threads.contains(&0) {
        return Err(Error::Invalid(
            "0 copies measure nothing: use 1 or more".to_owned(),
        ));
    }
    session.cpus_for(most, config.spread)?;
    if config.sizes.is_none()
        && let Some(stride) = config.strides.iter().find(|it| **it > config.max_bytes)
    {
        return Err(Error::Invalid(format!(
            "the largest size of {} bytes is smaller than the stride of {stride}",
            config.max_bytes
        )));
    }
    check_memory(session, config)?;
    for size in config.sizes.iter().flatten() {
        for stride in &config.strides {
            if size < stride {
                return Err(Error::Invalid(format!(
                    "a size of {size} bytes is smaller than the stride of {stride}"
                )));
            }
        }
    }
    Ok(())
}

/// Checks, before anything is measured, that the given sizes fit once per copy. Pages of a pool are
/// not checked here: mapping them fails if the pool has too few.
fn check_memory(session: &Session<'_>, config: &LatencyConfig) -> Result<(), Error> {
    let Some(size) = config.sizes.iter().flatten().copied().max() else {
        return Ok(());
    };
    for (page, node, threads) in groups(config) {
        let cpus = session.cpus_for(threads, config.spread)?;
        let each = Arena::bytes_for(session, size);
        let available = room::obtainable_each(session, (page, node), &cpus);
        if !room::is_pool(page) && each > available {
            return Err(Error::Memory {
                needed_bytes: each.saturating_mul(u64::from(threads)),
                available_bytes: available.saturating_mul(u64::from(threads)),
            });
        }
    }
    Ok(())
}

fn groups(config: &LatencyConfig) -> Vec<(PageKind, NodePolicy, u32)> {
    let mut groups = Vec::new();
    for &page in &config.pages {
        for &node in &config.nodes {
            groups.extend(config.threads.iter().map(|&threads| (page, node, threads)));
        }
    }
    groups
}

fn shapes(config: &LatencyConfig) -> impl Iterator<Item = (Pattern, Access, u64)> {
    config.patterns.iter().flat_map(move |&pattern| {
        config.accesses.iter().flat_map(move |&access| {
            config
                .strides
                .iter()
                .map(move |&stride| (pattern, access, stride))
        })
    })
}

/// The largest size of a group in bytes. Grid sizes shrink to what fits; given sizes do not.
fn largest_bytes(
    session: &Session<'_>,
    config: &LatencyConfig,
    (page, node): (PageKind, NodePolicy),
    cpus: &[CpuId],
) -> u64 {
    if let Some(given) = config.sizes.iter().flatten().copied().max() {
        return given;
    }
    let each =
        room::share_each(session, (page, node), cpus).saturating_sub(Arena::scratch_bytes(session));
    let mut bytes = config.max_bytes;
    while bytes > each && bytes > config.min_bytes {
        bytes /= 2;
    }
    bytes
}

/// Sorts points into the order that documents promise; of duplicates, the point with more samples
/// stays.
pub fn sort(points: &mut Vec<LatencyPoint>) {
    let key = |point: &LatencyPoint| {
        (
            (point.page, point.pattern, point.access, point.node),
            (point.threads, point.stride_bytes, point.size_bytes),
        )
    };
    points.sort_by_key(|point| (key(point), std::cmp::Reverse(point.samples)));
    points.dedup_by_key(|point| key(point));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use membound_platform::Root;

    use super::*;
    use crate::{Effort, Silent};

    fn with_session(check: impl FnOnce(&Session<'_>)) {
        let root = Root::system();
        let cancel = AtomicBool::new(false);
        check(&Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap());
    }

    fn short(sizes: Option<Vec<u64>>) -> LatencyConfig {
        LatencyConfig {
            sizes,
            series_budget: Duration::from_millis(20),
            ..LatencyConfig::new(Effort::Quick, PageKind::Base)
        }
    }

    #[test]
    fn a_stride_beyond_the_largest_size_is_refused() {
        with_session(|session| {
            let config = LatencyConfig {
                max_bytes: 4096,
                strides: vec![64, 8192],
                ..short(None)
            };
            let error = measure(session, &config, &|_, _| Vec::new()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("4096") && text.contains("8192"), "{text}");
        });
    }

    #[test]
    fn sizes_in_any_order_and_twice_are_one_point_each() {
        with_session(|session| {
            let config = short(Some(vec![65536, 4096, 65536, 16384, 4096]));
            let found = measure(session, &config, &|_, _| Vec::new()).unwrap();
            let sizes: Vec<u64> = found.points.iter().map(|it| it.size_bytes).collect();
            assert_eq!(sizes, [4096, 16384, 65536]);
            assert!(found.points.iter().all(|point| point.ns > 0.0));
        });
    }

    #[test]
    fn copies_that_do_not_fit_together_are_refused_before_one_is_measured() {
        with_session(|session| {
            if session.cpus.len() < 2 {
                println!("skipped: one CPU");
                return;
            }
            let place = (PageKind::Base, NodePolicy::LOCAL, session.cpu);
            let free = room::obtainable_bytes(session.root, &session.topology, place);
            let config = LatencyConfig {
                threads: vec![1, 2],
                ..short(Some(vec![free / 3 * 2]))
            };
            let error = measure(session, &config, &|_, _| Vec::new()).unwrap_err();
            assert!(matches!(error, Error::Memory { .. }), "{error}");
        });
    }
}
