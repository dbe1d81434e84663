//! Finds for which lines of the program itself the lines of libraries run.
//!
//! The hottest line of a program that uses containers is often in a header: a comparison of keys, say. What its
//! author can change is the line that called it, through inlined functions or not.

use membound_run::{FrameId, Location, StackId};
use membound_types::ProgramLine;
use rustc_hash::FxHashMap;

use crate::alloc_frames;
use crate::context::Context;
use crate::places::{LineId, Places};
use crate::rows::{TimesOf, most};

/// Share of a line's samples that the program's line must have; else there is no one line to name.
const MIN_SHARE: f64 = 0.5;

/// A source line with its function: file, line, function.
type Named<'a> = (&'a str, u32, &'a str);

/// For each line of a library, or of code without lines, the line of the program with most of its time.
pub(crate) fn program_lines(context: &Context<'_>) -> FxHashMap<LineId, ProgramLine> {
    let run = context.run;
    let places = &context.places;
    // Time of all samples, and by line of the program.
    let mut times: FxHashMap<LineId, (f64, TimesOf<Named<'_>>)> = FxHashMap::default();
    let mut callers = FxHashMap::default();
    for sample in &run.samples {
        if !context.is_selected(sample.thread) {
            continue;
        }
        let stack = run.stacks[sample.stack.index()];
        let waits = context.waits.of(stack.frame);
        let waited: f64 = waits.iter().map(|wait| wait.share).sum();
        let at_sites = (waits.iter()).map(|wait| (run.sites[wait.site.index()].frame, wait.share));
        for (frame, share) in at_sites.chain([(stack.frame, 1.0 - waited)]) {
            let line = places.line_of(frame);
            let file = places.line(line).file.as_deref();
            if share <= 0.0 || file.is_some_and(|file| !is_library(file)) {
                continue;
            }
            let ns = share * sample.weight_ns as f64;
            let (all_ns, by_line) = times.entry(line).or_default();
            *all_ns += ns;
            let own = own_line(places, frame).or_else(|| {
                let parent = stack.parent?;
                *callers
                    .entry(parent)
                    .or_insert_with(|| caller(context, parent))
            });
            if let Some(own) = own {
                *by_line.entry(own).or_default() += ns;
            }
        }
    }
    let main_caller = |(line, (all_ns, by_line)): (LineId, (f64, TimesOf<Named<'_>>))| {
        let longest = most(&by_line)?;
        let (file, number, function) = longest;
        (by_line[&longest] >= MIN_SHARE * all_ns).then(|| {
            let found = ProgramLine {
                name: format!("{}:{number}", places.short_file(file)),
                function: function.to_owned(),
                file: file.to_owned(),
                line: number,
            };
            (line, found)
        })
    };
    times.into_iter().filter_map(main_caller).collect()
}

/// The innermost line of the program itself in a frame.
fn own_line<'a>(places: &Places<'a>, frame: FrameId) -> Option<Named<'a>> {
    let own = |at: &'a Location| {
        let file = at.file.as_deref().filter(|file| !is_library(file))?;
        Some((file, at.line?, at.function.as_str()))
    };
    places.locations(frame).find_map(own)
}

/// The innermost line of the program itself in a call chain.
fn caller<'a>(context: &Context<'a>, innermost: StackId) -> Option<Named<'a>> {
    let mut next = Some(innermost);
    while let Some(id) = next {
        let stack = context.run.stacks[id.index()];
        let own = own_line(&context.places, stack.frame);
        if own.is_some() {
            return own;
        }
        next = stack.parent;
    }
    None
}

/// True if a source file belongs to a library that is installed on its machine, rather than to the program.
fn is_library(file: &str) -> bool {
    const ROOTS: [&str; 5] = [
        "/usr/include/",
        "/usr/local/include/",
        "/usr/lib/go",
        "/usr/local/go/",
        // What the standard library of Rust was built with.
        "/rust/deps/",
    ];
    ROOTS.iter().any(|root| file.starts_with(root))
        || file.contains("/.cargo/registry/src/")
        || alloc_frames::is_library_file(file)
}
