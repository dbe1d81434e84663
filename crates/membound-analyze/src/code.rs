//! Time and stall by function, source line and instruction.

use std::collections::BTreeMap;

use membound_run::{FrameId, ModuleId};
use membound_types::CodeRow;

use crate::context::Context;
use crate::places::LineId;
use crate::program_lines::program_lines;
use crate::rows::{self, TimesOf, by_frame, most};

/// Rows by function; an inlined function counts for the function that it is inlined into.
pub(crate) fn functions(context: &Context<'_>) -> Vec<CodeRow> {
    let places = &context.places;
    let sums = by_frame(context, |frame| places.function_of(frame));
    let rows = sums.into_iter().map(|(id, sum)| {
        let place = places.function(id);
        CodeRow {
            name: place.name.clone(),
            function: place.name.clone(),
            module: places.module_path(place.module).to_owned(),
            file: place.file.clone(),
            line: place.line,
            address: place.start,
            called_from: None,
            share: sum.share(context),
        }
    });
    sorted(rows.collect())
}

/// Rows by source line: the innermost line, wherever it is inlined. A line may belong to several functions
/// or modules (instances of a template, for example); the row names those with most of its time.
pub(crate) fn lines(context: &Context<'_>) -> Vec<CodeRow> {
    let places = &context.places;
    let module_of = |frame: FrameId| context.run.frames[frame.index()].module;
    let mut stands_in: BTreeMap<LineId, (TimesOf<&str>, TimesOf<Option<ModuleId>>)> =
        BTreeMap::new();
    let apart = by_frame(context, |frame| {
        (
            places.line_of(frame),
            places.innermost(frame),
            module_of(frame),
        )
    });
    for ((line, function, module), sum) in apart {
        let (functions, modules) = stands_in.entry(line).or_default();
        *functions.entry(function).or_default() += sum.time_ns;
        *modules.entry(module).or_default() += sum.time_ns;
    }
    let mut called_from = program_lines(context);
    let sums = by_frame(context, |frame| places.line_of(frame));
    let rows = sums.into_iter().map(|(id, sum)| {
        let place = places.line(id);
        let weights = stands_in.get(&id);
        let function = weights.and_then(|(functions, _)| most(functions));
        let module = weights.and_then(|(_, modules)| most(modules));
        CodeRow {
            name: place.name.clone(),
            function: function.unwrap_or(place.function.as_str()).to_owned(),
            module: places
                .module_path(module.unwrap_or(place.module))
                .to_owned(),
            file: place.file.clone(),
            line: place.line,
            address: None,
            called_from: called_from.remove(&id),
            share: sum.share(context),
        }
    });
    sorted(rows.collect())
}

/// Rows by instruction: the access that a sample waited for, or the sampled instruction where it waited for
/// none.
pub(crate) fn instructions(
    context: &Context<'_>,
    texts: &crate::listing::Texts<'_>,
) -> Vec<CodeRow> {
    let places = &context.places;
    let sums = by_frame(context, |frame| frame);
    let rows = sums.into_iter().map(|(frame, sum)| {
        let line = places.line(places.line_of(frame));
        let function = places.function(places.function_of(frame));
        CodeRow {
            name: texts.of(frame),
            function: function.name.clone(),
            module: places.module_path(function.module).to_owned(),
            file: line.file.clone(),
            line: line.line,
            address: Some(context.run.frames[frame.index()].address),
            called_from: None,
            share: sum.share(context),
        }
    });
    sorted(rows.collect())
}

fn sorted(mut rows: Vec<CodeRow>) -> Vec<CodeRow> {
    rows.sort_by(|a, b| {
        rows::order((&a.share, &a.name), (&b.share, &b.name)).then(a.address.cmp(&b.address))
    });
    rows
}
