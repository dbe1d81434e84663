//! Share of the loads that programs execute which can be patched.
//!
//! Programs run under valgrind's callgrind, which counts the executions of every instruction; each
//! executed load is looked up in its module's plan, with jump tables resolved and with indirect
//! jumps left unresolved. The same counts are the known answer for the decoded control flow
//! ([`truth`]).
//!
//! Valgrind has no AVX-512, so libraries choose other variants of some functions under it than on
//! the machine itself; and it executes a repeated string instruction as a loop, which counts once
//! per entry here. Loads are those of memory operands: reads of the stack by `pop` and `ret` do not
//! count.

mod callgrind;
mod truth;
mod workloads;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use iced_x86::{Decoder, DecoderOptions, Formatter as _, Instruction, IntelFormatter};
use membound_rewrite::code::{Function, ImageFacts, Tables};
use membound_rewrite::flow;
use membound_rewrite::image::Image;
use membound_rewrite::patch::{Body, Options, Plan};
use membound_types::Doctor;
use rayon::prelude::*;
use serde_json::{Value, json};

use self::callgrind::{Object, Trace};
use self::truth::Verdict;
use self::workloads::Workload;
use super::common::{document, verdict};
use crate::results::Kept;
use crate::run::{note, on_path, program, say};

const RESOLVED_TARGET: f64 = 0.97;
const IGNORED_TARGET: f64 = 0.90;
/// Share of all executed loads from which on modules without a target are shown.
const SHOWN_FROM: f64 = 0.002;
/// Number of control-flow violations that are printed; all are kept.
const SHOWN_VIOLATIONS: usize = 12;

/// Arguments of `bench coverage`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The programs to run; all of them without.
    workloads: Vec<Workload>,
}

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    if on_path("valgrind").is_none() {
        bail!(
            "no valgrind on PATH, which counts the executed loads; install it (Debian's package of that name)"
        );
    }
    let doctor: Doctor = document(program(membound).args(["doctor", "--json", "-"]))?;
    let scratch = tempfile::tempdir().context("cannot create a temporary directory")?;
    let asked = if args.workloads.is_empty() {
        &Workload::ALL[..]
    } else {
        &args.workloads
    };
    let mut trace = Trace::new();
    for workload in asked {
        workload.run(scratch.path(), membound, &mut trace)?;
    }
    let rust = [workloads::rust_program(scratch.path()), membound.to_owned()];
    let mut modules = Vec::new();
    let mut unknown = 0;
    for (path, ran) in &trace {
        let file = Path::new(path);
        if !file.is_file() {
            unknown += ran.executed.values().sum::<u64>();
            continue;
        }
        note(format_args!("{path}"));
        modules.push(ObjectFile::of(file, ran, judged(file, &rust))?);
    }
    modules.sort_by_key(|module| std::cmp::Reverse(module.resolved.executed));
    show(&modules);
    say(format_args!(
        "{unknown} instructions executed outside of files (the kernel's page, valgrind's own code)"
    ));
    Ok(Kept {
        bench: "coverage",
        machine: doctor.machine,
        summary: modules.iter().map(ObjectFile::summary).collect(),
        raw: modules.iter().map(ObjectFile::raw).collect(),
    })
}

/// Whether the targets apply to this module.
fn judged(file: &Path, rust: &[PathBuf]) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    let name = name.unwrap_or_default();
    ["libc.so.", "libstdc++.so.", "libsqlite3.so.", "python3"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || rust.iter().any(|path| path == file)
}

/// Results of one object file.
struct ObjectFile {
    path: PathBuf,
    judged: bool,
    resolved: Share,
    ignored: Share,
    truth: Verdict,
}

/// Which of the executed loads can be patched.
#[derive(Default)]
struct Share {
    /// Executions of loads.
    executed: u64,
    /// Executions of the loads that are patched.
    patched: u64,
    /// Executions of the loads that are not patched, by reason.
    refused: BTreeMap<String, u64>,
    /// Loads in the plan, and how many of them are patched.
    present: u64,
    present_patched: u64,
    /// The executed loads that are not patched.
    sites: Vec<Refused>,
    /// Time of planning, in seconds.
    plan_s: f64,
}

struct Refused {
    address: u64,
    executions: u64,
    reason: String,
    text: String,
}

impl Share {
    fn of(image: &Image<'_>, loads: &[Load], tables: Tables) -> Self {
        let began = Instant::now();
        let plan = Plan::make(
            image,
            &Options {
                tables,
                ..Options::new(Body::Count { exact: false })
            },
        );
        let mut share = Self {
            plan_s: began.elapsed().as_secs_f64(),
            ..Self::default()
        };
        let mut sites = HashMap::new();
        for site in plan.sites() {
            if site.direction.loads() {
                share.present += 1;
                share.present_patched += u64::from(site.number.is_ok());
            }
            sites.insert(site.address, site.number);
        }
        let mut formatter = IntelFormatter::new();
        for load in loads {
            share.executed += load.executions;
            let reason = match sites.get(&load.instruction.ip()) {
                Some(Ok(_)) => {
                    share.patched += load.executions;
                    continue;
                }
                Some(Err(refusal)) => refusal.to_string(),
                None => "in-no-function".to_owned(),
            };
            *share.refused.entry(reason.clone()).or_default() += load.executions;
            let mut text = String::new();
            formatter.format(&load.instruction, &mut text);
            share.sites.push(Refused {
                address: load.instruction.ip(),
                executions: load.executions,
                reason,
                text,
            });
        }
        share
            .sites
            .sort_by_key(|site| (std::cmp::Reverse(site.executions), site.address));
        share
    }

    fn patchable(&self) -> f64 {
        ratio(self.patched, self.executed)
    }

    fn summary(&self, target: f64) -> Value {
        json!({
            "executed": self.executed, "patched": self.patched, "patchable": self.patchable(),
            "target": target, "refused": self.refused, "present": self.present,
            "present_patched": self.present_patched, "plan_s": self.plan_s,
        })
    }
}

/// An executed load.
struct Load {
    instruction: Instruction,
    executions: u64,
}

impl ObjectFile {
    fn of(path: &Path, ran: &Object, judged: bool) -> Result<Self> {
        let data =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let image = Image::parse(&data).with_context(|| path.display().to_string())?;
        let loads = loads(&image, ran)?;
        let knowledge = ImageFacts::gather(&image, Tables::Resolve);
        let functions: Vec<Function> = (0..image.functions().len())
            .into_par_iter()
            .map(|index| Function::decode(&image, &knowledge, index))
            .collect();
        Ok(Self {
            path: path.to_owned(),
            judged,
            resolved: Share::of(&image, &loads, Tables::Resolve),
            ignored: Share::of(&image, &loads, Tables::Ignore),
            truth: truth::compare(&functions, ran),
        })
    }

    /// The file's name, without the directory in which it was built.
    fn name(&self) -> Cow<'_, str> {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy()
    }

    fn summary(&self) -> Value {
        json!({
            "module": self.name(), "judged": self.judged,
            "resolved": self.resolved.summary(RESOLVED_TARGET),
            "ignored": self.ignored.summary(IGNORED_TARGET),
            "addresses": self.truth.addresses, "outside": self.truth.outside,
            "transfers": self.truth.transfers, "unresolved": self.truth.unresolved,
            "violations": self.truth.violations.len(),
        })
    }

    /// The data from which the summary's shares are computed; for the second plan only the reasons,
    /// which are in the summary, because its sites are many.
    fn raw(&self) -> Value {
        let sites: Vec<Value> = self
            .resolved
            .sites
            .iter()
            .map(|site| {
                json!([
                    format!("{:#x}", site.address),
                    site.executions,
                    site.reason,
                    site.text
                ])
            })
            .collect();
        let violations: Vec<String> = self
            .truth
            .violations
            .iter()
            .map(ToString::to_string)
            .collect();
        json!({ "module": self.name(), "refused": sites, "violations": violations })
    }
}

/// The loads among the executed instructions.
fn loads(image: &Image<'_>, ran: &Object) -> Result<Vec<Load>> {
    const MAX_INSTRUCTION_BYTES: u64 = 15;
    let mut found = Vec::new();
    for (&address, &executed) in &ran.executed {
        let bytes = (1..=MAX_INSTRUCTION_BYTES)
            .rev()
            .find_map(|length| image.bytes(address..address.checked_add(length)?))
            .with_context(|| {
                format!("{address:#x} was executed, but the file has nothing there")
            })?;
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        if !flow::access(&instruction).is_some_and(|access| access.direction.loads()) {
            continue;
        }
        // Jumps of valgrind's own loop for a repeated string instruction.
        let repeated = ran
            .jumps
            .get(&(address, address))
            .copied()
            .unwrap_or_default();
        found.push(Load {
            instruction,
            executions: executed.saturating_sub(repeated),
        });
    }
    Ok(found)
}

fn show(modules: &[ObjectFile]) {
    let all: u64 = modules.iter().map(|module| module.resolved.executed).sum();
    say("                        loads   patchable            tables ignored       of those");
    say("module               executed    executed  target    executed  target      present");
    for module in modules {
        if !module.judged && ratio(module.resolved.executed, all) < SHOWN_FROM {
            continue;
        }
        let target = |share: &Share, target: f64| {
            if module.judged {
                verdict(share.patchable() >= target)
            } else {
                "-"
            }
        };
        say(format_args!(
            "{:<19}{:>10}{:>10.2} %  {:<8}{:>8.2} %  {:<8}{:>8.2} %",
            module.name(),
            module.resolved.executed,
            module.resolved.patchable() * 100.0,
            target(&module.resolved, RESOLVED_TARGET),
            module.ignored.patchable() * 100.0,
            target(&module.ignored, IGNORED_TARGET),
            ratio(module.resolved.present_patched, module.resolved.present) * 100.0,
        ));
        for (setting, share) in [("resolved", &module.resolved), ("ignored", &module.ignored)] {
            let mut reasons: Vec<_> = share.refused.iter().collect();
            reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let listed: Vec<String> = reasons
                .iter()
                .map(|(reason, count)| {
                    format!("{reason} {:.2} %", ratio(**count, share.executed) * 100.0)
                })
                .collect();
            if !listed.is_empty() {
                say(format_args!("  not, {setting}: {}", listed.join(", ")));
            }
        }
        let truth = &module.truth;
        say(format_args!(
            "  control flow: {} addresses and {} transfers compared, {} addresses in no function, violations: {}",
            truth.addresses,
            truth.transfers,
            truth.outside,
            truth.violations.len(),
        ));
        for violation in truth.violations.iter().take(SHOWN_VIOLATIONS) {
            say(format_args!("    {violation}"));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_speak_of_these_modules() {
        let rust = [PathBuf::from("/x/work")];
        for name in [
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            "/lib/libstdc++.so.6.0.30",
            "/lib/libsqlite3.so.0.8.6",
            "/usr/bin/python3.11",
            "/x/work",
        ] {
            assert!(judged(Path::new(name), &rust), "{name}");
        }
        for name in ["/lib/libm.so.6", "/lib/libcrypt.so.1", "/y/work"] {
            assert!(!judged(Path::new(name), &rust), "{name}");
        }
    }

    #[test]
    fn nothing_of_nothing_is_no_share() {
        assert!(ratio(0, 0).abs() < f64::EPSILON);
        assert!((ratio(1, 4) - 0.25).abs() < f64::EPSILON);
    }
}
