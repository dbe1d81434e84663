//! `membound rewrite plan`: shows what can be patched in a binary.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use membound_launch::plan_of;
use membound_rewrite::image::{FunctionBounds, Identity, Image};
use membound_rewrite::patch::{self, Detail, FunctionReport, Plan};
use membound_types::{
    Kind, PatchCounts, PlannedFunction, PlannedInstruction, RewritePlan, SCHEMA_VERSION,
};

use super::args::PlanArgs;
use super::names::{self, FunctionPattern};
use super::{checked, settings};
use crate::launching;
use crate::output::{self, Target, Usage};

/// Plans the binary and shows which accesses can be patched.
pub(super) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let options = settings::plan(&args.options).map_err(Usage)?;
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let path = &args.binary;
    let bytes = read(path)?;
    let image = Image::parse(&bytes).with_context(|| path.display().to_string())?;
    let wanted = args.function.as_deref().map(FunctionPattern::parse);
    let means = |function: &FunctionBounds| {
        wanted
            .as_ref()
            .is_none_or(|wanted| wanted.means(&function.range, function.name.as_deref()))
    };
    if let Some(text) = &args.function
        && !image.functions().iter().any(means)
    {
        bail!("{}", unknown_function(path, text, image.functions()));
    }
    let cache = settings::cache(&args.options);
    let plan = plan_of(&image, &options, cache.as_ref(), &launching::revision());
    let functions = match wanted {
        Some(_) => patch::describe(&image, &options, &plan, means, Detail::Listing)
            .into_iter()
            .map(planned_function)
            .collect(),
        None => summarised(&image, &plan),
    };
    let document = document(args, &image, functions);
    match &mut json {
        Some(target) => target.write(&output::json(&document)?)?,
        None => output::print(&membound_report::text::rewrite_plan(
            &document,
            output::style(),
        )),
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let place = || format!("cannot read {}", path.display());
    let found = std::fs::metadata(path).with_context(place)?;
    if found.is_dir() {
        bail!("cannot read {}: it is a directory", path.display());
    }
    if !found.is_file() {
        bail!("cannot read {}: it is no regular file", path.display());
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|mut file| std::io::Read::read_to_end(&mut file, &mut bytes))
        .with_context(place)?;
    if bytes.is_empty() {
        bail!("{}: the file is empty", path.display());
    }
    Ok(bytes)
}

/// Error for an unknown function, with similar names if there are any.
fn unknown_function(path: &Path, wanted: &str, functions: &[FunctionBounds]) -> String {
    let path = path.display();
    if let FunctionPattern::Address(address) = FunctionPattern::parse(wanted) {
        return format!("{path} has no function at {address:#x}");
    }
    let names = functions.iter().filter_map(|it| it.name.as_deref());
    let near = names::similar_names(wanted, names);
    let mut line = format!("{path} has no function `{wanted}`");
    if near.is_empty() {
        let named = functions.iter().filter(|it| it.name.is_some()).count();
        let _ = write!(
            line,
            "; {named} of its {} functions have names, and every one has an address",
            functions.len()
        );
    } else {
        let _ = write!(line, "; there is {}", near.join(", "));
    }
    line
}

/// Counts for every function, taken from the plan without decoding the binary again.
fn summarised(image: &Image<'_>, plan: &Plan) -> Vec<PlannedFunction> {
    let mut counts: HashMap<u64, PatchCounts> = HashMap::new();
    for site in plan.sites() {
        let refused = site.number.err().map(|it| it.to_string());
        let counts = counts.entry(site.function).or_default();
        checked::add(counts, site.direction, refused);
    }
    let bounds: HashMap<u64, &FunctionBounds> = image
        .functions()
        .iter()
        .map(|function| (function.range.start, function))
        .collect();
    plan.functions()
        .map(|function| {
            let address = function.range.start;
            PlannedFunction {
                address,
                name: bounds.get(&address).map_or_else(
                    || format!("{address:#x}"),
                    |bounds| names::display_name(bounds),
                ),
                size_bytes: function.range.end - address,
                blocks: u64::from(function.blocks),
                counts: counts.remove(&address).unwrap_or_default(),
                unresolved: function.unresolved.map(|it| it.to_string()),
                instructions: Vec::new(),
            }
        })
        .collect()
}

fn document(
    args: &PlanArgs,
    image: &Image<'_>,
    mut functions: Vec<PlannedFunction>,
) -> RewritePlan {
    let found = functions.len() as u64;
    let blocks = functions.iter().map(|function| function.blocks).sum();
    let unresolved = functions
        .iter()
        .filter(|it| it.unresolved.is_some())
        .count();
    let mut counts = PatchCounts::default();
    for function in &functions {
        checked::join(&mut counts, &function.counts);
    }
    if args.function.is_none() {
        functions.retain(|function| function.counts.accesses > 0);
    }
    functions.sort_by_key(|function| {
        let refused = function.counts.accesses - function.counts.patched;
        (Reverse(refused), function.address)
    });
    RewritePlan {
        schema_version: SCHEMA_VERSION,
        kind: Kind::RewritePlan,
        membound_version: crate::version::BUILD.to_owned(),
        path: args.binary.display().to_string(),
        identity: identity(image.identity()),
        body: args.options.body,
        tables_resolved: !args.options.no_tables,
        functions_found: found,
        blocks,
        unresolved: unresolved as u64,
        counts,
        functions,
    }
}

fn identity(identity: &Identity) -> String {
    let (kind, bytes): (_, &[u8]) = match identity {
        Identity::BuildId(bytes) => ("build-id", bytes),
        Identity::TextHash(bytes) => ("sha256", bytes),
    };
    format!("{kind}:{}", hexadecimal(bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// A function with all its instructions.
fn planned_function(report: FunctionReport) -> PlannedFunction {
    let mut counts = PatchCounts::default();
    let mut accesses = HashMap::new();
    for access in report.accesses {
        let refused = access.refused.map(|it| it.to_string());
        checked::add(&mut counts, access.direction, refused);
        accesses.insert(access.address, access);
    }
    let instructions = report
        .listing
        .into_iter()
        .map(|instruction| {
            let access = accesses.get(&instruction.address);
            let group = report
                .groups
                .iter()
                .find(|group| group.range.contains(&instruction.address));
            PlannedInstruction {
                address: instruction.address,
                bytes: hexadecimal(&instruction.bytes),
                text: instruction.text,
                block: instruction.block,
                live: instruction.live.to_string(),
                dead: instruction.live.complement().to_string(),
                access: access.map(|access| checked::kind(access.direction)),
                group: group.map(|group| group.range.start),
                patched: access.is_some_and(|access| access.refused.is_none()),
                refused: access.and_then(|access| access.refused.map(|it| it.to_string())),
            }
        })
        .collect();
    PlannedFunction {
        address: report.bounds.range.start,
        name: names::display_name(&report.bounds),
        size_bytes: report.bounds.range.end - report.bounds.range.start,
        blocks: report.blocks as u64,
        counts,
        unresolved: report.unresolved.map(|it| it.to_string()),
        instructions,
    }
}
