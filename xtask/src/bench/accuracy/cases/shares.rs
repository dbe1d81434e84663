//! A known share of time in a chase through each level, and the rest in a loop full of loads that
//! hit the innermost cache.

use anyhow::{Context as _, Result};
use membound_model::stall::{Mixer, Served};
use membound_types::{LevelShares, MachineProfile};

use super::super::case::{
    Case, Figure, Observed, ProfilingMethod, SHARE, latency_ns, size_bytes, started,
};
use super::super::statistics::{Reading, Tolerance};

/// Shares of the chase in the loops' time, in percent.
const PERCENT: [u32; 7] = [0, 10, 25, 50, 75, 90, 100];
/// Milliseconds of CPU time: at one sample per millisecond, well above 1000 samples.
const MILLISECONDS: &str = "1600";
/// Tolerance of a stall, in points.
const POINTS: f64 = 4.0;
/// Percent of the stall that may be attributed to other levels.
const ELSEWHERE: f64 = 15.0;
/// Share of the time below which the level of the stall is not checked.
const MIN_TIME_SHARE: f64 = 0.1;

/// The cases of all levels, and the levels for which this machine has no case.
pub(super) fn cases(machine: &MachineProfile) -> (Vec<Case>, Vec<(String, String)>) {
    let [l1, l2, l3] = ["L1", "L2", "L3"].map(|level| size_bytes(machine, level));
    let has_l3 = machine.calibration.known().is_some_and(|known| {
        let mut levels = known.levels.iter();
        levels.any(|it| it.name == "L3")
    });
    let areas = [
        ("L1", Ok(l1.map_or(16 << 10, |size| size / 2))),
        (
            "L2",
            Ok(l1
                .zip(l2)
                .map_or(256 << 10, |(l1, l2)| (l1 * 4).min(l2 / 2))),
        ),
        (
            "L3",
            match l2.zip(l3) {
                None => Err("this machine shows no third cache"),
                Some(_) if !has_l3 => {
                    Err("neighbours had the third cache whenever it was calibrated")
                }
                Some((l2, l3)) => Ok((l2 * 3).min(l3 * 2 / 3)),
            },
        ),
        ("DRAM", Ok(256 << 20)),
    ];
    let mut cases = Vec::new();
    let mut absent = Vec::new();
    for (level, area) in areas {
        match area {
            Ok(bytes) => cases.extend(PERCENT.map(|percent| case(level, bytes, percent))),
            Err(reason) => absent.push((format!("shares/{level}"), reason.to_owned())),
        }
    }
    cases.extend(calibrated(machine));
    (cases, absent)
}

/// Levels whose loads a second calibration times, the levels to which the first may attribute them,
/// and the percent that it may attribute elsewhere. The first two caches cannot be told apart on
/// every machine.
const CALIBRATED: [(&str, &[Served], f64); 4] = [
    ("L1", &[Served::L1, Served::L2], 10.0),
    ("L2", &[Served::L1, Served::L2], 10.0),
    ("L3", &[Served::L3], 20.0),
    ("DRAM", &[Served::Dram], 10.0),
];

/// A second calibration times loads in known levels, so it is as good a test as any program whose
/// level is known.
fn calibrated(machine: &MachineProfile) -> Option<Case> {
    let known = machine.calibration.known()?;
    let mut case = started("shares/calibration", SHARE, &["4096", "0", "50"]);
    case.method = ProfilingMethod::Calibrated;
    for (name, served, elsewhere) in CALIBRATED {
        if !known.levels.iter().any(|level| level.name == name) {
            continue;
        }
        let tolerance = Tolerance::Short(elsewhere);
        case.figures
            .push(Figure::new(name, tolerance, move |observed| {
                let first = observed.machine.calibration.known();
                let first = first.context("the machine is calibrated")?;
                let second = observed.calibration.as_ref();
                let second = second.context("it was calibrated again")?;
                let mixer = Mixer::new(first, &first.patch).context("levels cannot be told")?;
                let Some(level) = second.levels.iter().find(|level| level.name == name) else {
                    return Ok(None);
                };
                let mixture = mixer.fit(&level.ticks).context("there are no times")?;
                let levels = mixture.levels.iter();
                let right = levels.filter(|level| served.contains(&level.served));
                Ok(Some(Reading {
                    truth: 1.0,
                    found: right.map(|level| level.share.value).sum(),
                }))
            }));
    }
    Some(case)
}

fn case(level: &'static str, area_bytes: u64, percent: u32) -> Case {
    let words = [&area_bytes.to_string(), &percent.to_string(), MILLISECONDS];
    let mut case = started(&format!("shares/{level}/{percent}"), SHARE, &words);
    case.figures = vec![
        Figure::new("stall", Tolerance::Points(POINTS), move |observed| {
            let (time, stall, _) = of_loops(observed);
            Ok(Some(Reading {
                truth: truth(observed, level)?,
                found: stall / time,
            }))
        }),
        Figure::finding("1000 samples", |observed| {
            Ok(observed.profile.run.effective_samples >= 1000.0)
        }),
    ];
    if percent > 0 && level != "L1" {
        let figure = Figure::new(
            format!("in {level}"),
            Tolerance::Short(ELSEWHERE),
            move |observed| {
                if truth(observed, level)? <= MIN_TIME_SHARE {
                    return Ok(None);
                }
                let (_, stall, levels) = of_loops(observed);
                let right = match level {
                    "L2" => levels.l1 + levels.l2,
                    "L3" => levels.l3,
                    _ => levels.dram,
                };
                Ok(Some(Reading {
                    truth: 1.0,
                    found: right / stall,
                }))
            },
        );
        case.figures.push(figure);
    }
    case
}

/// The stall of the chase as a share of the loops' time: the cost of its hops beyond hits, by the
/// program's own clock. That clock counts recording as the program's own time; the report does not
/// count it as stall.
fn truth(observed: &Observed, level: &str) -> Result<f64> {
    let (chase, alu) = (observed.told("chase_ns")?, observed.told("alu_ns")?);
    let hop_ns = chase / observed.told("hops")?.max(1.0);
    let hit_ns = latency_ns(&observed.machine, "L1").unwrap_or(0.0);
    if chase <= 0.0 || level == "L1" {
        return Ok(0.0);
    }
    let beyond = (1.0 - hit_ns / hop_ns).max(0.0);
    Ok(chase / (chase + alu) * beyond * (1.0 - observed.recorded() / 2.0))
}

/// CPU time and stall of the two loops alone, without what the program does before them.
fn of_loops(observed: &Observed) -> (f64, f64, LevelShares) {
    let mut time = 0.0;
    let mut stall = 0.0;
    let mut levels = LevelShares::default();
    for row in observed.functions(&["chase", "work"]) {
        time += row.share.time_fraction;
        stall += row.share.stall_fraction;
        levels.l1 += row.share.levels.l1;
        levels.l2 += row.share.levels.l2;
        levels.l3 += row.share.levels.l3;
        levels.dram += row.share.levels.dram;
    }
    (time, stall, levels)
}
