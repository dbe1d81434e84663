//! Compares profiles of machines, and calls the comparison of runs where runs are named.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, bail};
use membound_analyze::Expression;
use membound_model::compare::{self, Fleet, NamedProfile, Reading};
use membound_report::text::{self, Shown};
use membound_types::{Comparison, GuardHit, SkippedFile};

use super::{CompareArgs, CompareFormat, read, runs};
use crate::output::{self, Target, Usage};

/// Share by which a figure of a profile must differ from its fleet to be an outlier.
const OUTLIER_SHARE: f64 = 0.05;
/// Maximum number of skipped files and failed figures that are named one by one.
const MAX_NAMED: usize = 5;

/// Compares the profiles or runs that the arguments name.
pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let (directories, files): (Vec<&PathBuf>, Vec<&PathBuf>) =
        args.paths.iter().partition(|path| path.is_dir());
    let of_runs = !args.base.is_empty() || files.iter().any(|path| runs::is_run(path));
    if of_runs {
        if let [file] = args.paths.as_slice() {
            return Err(nothing_to_compare_with(file));
        }
        return runs::run(args);
    }
    let limit_percent = limit_percent(args)?;
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let mut html = args.html.as_deref().map(Target::page).transpose()?;
    let mut profiles = Vec::new();
    for path in &files {
        profiles.extend(read::file(path)?);
    }
    let comparison = compare(limit_percent, &directories, &profiles)?;
    let is_alone = comparison.conditions.len() < 2 && comparison.overlays.is_empty();
    if directories.is_empty() && profiles.len() == 1 && is_alone {
        return Err(nothing_to_compare_with(files[0]));
    }
    show(args, &comparison, json.as_mut(), html.as_mut())?;
    Ok(verdict(&comparison))
}

/// The limit for machine profiles in per cent; options that apply only to runs are refused.
fn limit_percent(args: &CompareArgs) -> anyhow::Result<Option<f64>> {
    if args.markdown.is_some() || args.junit.is_some() {
        let why = "--markdown and --junit are for runs, and none is named";
        return Err(Usage(why.to_owned()).into());
    }
    match args.fail_on.as_slice() {
        [] => Ok(None),
        [limit] => percent(limit).map(Some).map_err(|reason| {
            let reason = match limit.parse::<Expression>() {
                Ok(_) => format!("`{limit}` guards runs; machine profiles take P%, as in 5%"),
                Err(_) => reason,
            };
            Usage(reason).into()
        }),
        _ => Err(Usage("machine profiles take one --fail-on P%".to_owned()).into()),
    }
}

/// Error for a single file that has nothing to be compared with, not even in itself, as parallel loads under
/// several conditions would.
fn nothing_to_compare_with(file: &Path) -> anyhow::Error {
    Usage(format!(
        "{} alone has nothing to be compared with: name a second one, or a directory of profiles \
         (see `membound compare --help`)",
        file.display()
    ))
    .into()
}

fn compare(
    limit_percent: Option<f64>,
    directories: &[&PathBuf],
    profiles: &[NamedProfile],
) -> anyhow::Result<Comparison> {
    let mut comparison = if directories.is_empty() {
        compare::compare(profiles, None)
    } else {
        let (fleet, skipped) = fleet(directories)?;
        complain_of(&skipped);
        let limit = limit_percent.map_or(OUTLIER_SHARE, |percent| {
            (percent / 100.0).min(OUTLIER_SHARE)
        });
        let mut comparison = against(&fleet, profiles);
        comparison.fleets = fleet.finish(limit);
        comparison.skipped = skipped;
        comparison
    };
    comparison.guard = limit_percent.map(|percent| compare::guard::judge(&comparison, percent));
    Ok(comparison)
}

/// Compares files with the median of the profiles with the same processor, or of the most frequent processor
/// if the fleet has none of that kind.
fn against(fleet: &Fleet, profiles: &[NamedProfile]) -> Comparison {
    let own = profiles
        .first()
        .and_then(|profile| fleet.reference(&profile.view.cpu_name()));
    let reference = own.or_else(|| fleet.reference(fleet.largest_group()?));
    match reference {
        Some(reference) if !profiles.is_empty() => compare::compare(profiles, Some(reference)),
        _ => compare::compare(profiles, None),
    }
}

/// Reads every `*.json` of the directories, without subdirectories, on all CPUs.
fn fleet(directories: &[&PathBuf]) -> anyhow::Result<(Fleet, Vec<SkippedFile>)> {
    let mut paths = Vec::new();
    for directory in directories {
        let place = || format!("cannot read {}", directory.display());
        for entry in std::fs::read_dir(directory).with_context(place)? {
            let path = entry.with_context(place)?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                paths.push(path);
            }
        }
    }
    // Directory order is arbitrary; sorted names give the same document each time.
    paths.sort();
    let (readings, skipped) = read_all(&paths);
    let mut fleet = Fleet::default();
    for reading in readings {
        fleet.add(reading);
    }
    if fleet.is_empty() {
        let names: Vec<String> = directories
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let why = skipped.first().map_or_else(
            || "no file there ends in .json".to_owned(),
            |first| format!("{}: {}", first.file, first.reason),
        );
        bail!("no profile in {}: {why}", names.join(", "));
    }
    Ok((fleet, skipped))
}

/// Reads all files. Returns the figures of usable files, and why each other file was skipped, both in the
/// order of `paths`. A thread reuses its buffer, so the text of a file is dropped before it reads the next one.
fn read_all(paths: &[PathBuf]) -> (Vec<Reading>, Vec<SkippedFile>) {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(paths.len()));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads.min(paths.len()) {
            scope.spawn(|| {
                let mut bytes = Vec::new();
                while let Some((index, path)) = take(&next, paths) {
                    let name = path.display().to_string();
                    let read = read::profile_into(path, &mut bytes)
                        .map(|view| Reading::of(&name, &view))
                        .map_err(|reason| SkippedFile { file: name, reason });
                    // Entries are pushed whole, so the list is valid even if a thread panicked.
                    done.lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((index, read));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    let (mut readings, mut skipped) = (Vec::new(), Vec::new());
    for (_, read) in done {
        match read {
            Ok(reading) => readings.push(reading),
            Err(file) => skipped.push(file),
        }
    }
    (readings, skipped)
}

fn take<'a>(next: &AtomicUsize, paths: &'a [PathBuf]) -> Option<(usize, &'a Path)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    paths.get(index).map(|path| (index, path.as_path()))
}

fn complain_of(skipped: &[SkippedFile]) {
    for file in skipped.iter().take(MAX_NAMED) {
        output::complain(&format!("{}: {}: skipped", file.file, file.reason));
    }
    if skipped.len() > MAX_NAMED {
        output::complain(&format!(
            "{} more files were skipped (--json has their names)",
            skipped.len() - MAX_NAMED
        ));
    }
}

fn show(
    args: &CompareArgs,
    comparison: &Comparison,
    json: Option<&mut Target>,
    html: Option<&mut Target>,
) -> anyhow::Result<()> {
    if let Some(target) = html {
        target.write(&membound_report::page::comparison(comparison))?;
    }
    let on_stdout = json.as_ref().is_some_and(|target| target.is_stdout());
    if let Some(target) = json {
        target.write(&output::json(comparison)?)?;
    }
    if on_stdout {
        return Ok(());
    }
    match args.format {
        CompareFormat::Json => output::print(&output::json(comparison)?),
        CompareFormat::Text => {
            let shown = if args.all {
                Shown::Everything
            } else {
                Shown::Differences
            };
            output::print(&text::comparison(comparison, shown, output::style()));
        }
    }
    Ok(())
}

/// The exit code; prints on stderr which figures are worse than allowed.
fn verdict(comparison: &Comparison) -> ExitCode {
    let empty = comparison.summaries.iter().find(|it| it.compared == 0);
    if let (Some(_), Some(empty), Some(first)) =
        (&comparison.guard, empty, comparison.profiles.first())
    {
        // A guard that compared nothing must not pass.
        output::complain(&format!(
            "--fail-on has nothing to guard: {} has no figure in common with {}",
            empty.profile, first.name
        ));
        return ExitCode::FAILURE;
    }
    let Some(guard) = comparison.guard.as_ref().filter(|guard| guard.exceeded) else {
        return ExitCode::SUCCESS;
    };
    let named: Vec<String> = guard
        .worst
        .iter()
        .take(MAX_NAMED)
        .map(describe_worse)
        .collect();
    let more = match guard.worst.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    output::complain(&format!(
        "worse by more than {} %: {}{more}",
        guard.limit_percent,
        named.join(", ")
    ));
    ExitCode::FAILURE
}

fn describe_worse(hit: &GuardHit) -> String {
    format!(
        "{} {} {:+.1} %",
        hit.profile,
        hit.figure,
        hit.relative * 100.0
    )
}

fn percent(text: &str) -> Result<f64, String> {
    let text = text.trim();
    text.strip_suffix('%')
        .unwrap_or(text)
        .trim_end()
        .parse()
        .ok()
        .filter(|percent: &f64| percent.is_finite() && *percent >= 0.0)
        .ok_or_else(|| format!("`{text}` is no percentage: use 5% or 5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read_with_and_without_their_sign() {
        for (text, value) in [("5", 5.0), ("5%", 5.0), ("2.5 %", 2.5), ("0", 0.0)] {
            assert_eq!(percent(text), Ok(value));
        }
        for text in ["", "%", "five", "-1", "nan", "inf%", "5%%", "5%%x"] {
            let error = percent(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }
}
