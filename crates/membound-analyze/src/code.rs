//! Time and stall by function, source line and instruction.

use std::collections::BTreeMap;

use membound_run::{FrameId, ModuleId};
use membound_types::CodeRow;

use crate::context::Context;
use crate::places::LineId;
use crate::rows::{self, Sum};

/// By function: those that are not inlined.
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
            share: sum.share(context),
        }
    });
    sorted(rows.collect())
}

/// Times of what a line is part of, by its name or number.
type TimesOf<K> = BTreeMap<K, f64>;

/// What has most of a line's time; of several that have as much, the first.
fn most<K: Copy>(times: &TimesOf<K>) -> Option<K> {
    let longest = |most: (K, f64), one: (K, f64)| if one.1 > most.1 { one } else { most };
    let times = times.iter().map(|(of, time_ns)| (*of, *time_ns));
    times.reduce(longest).map(|(of, _)| of)
}

/// By source line: the innermost, wherever it is inlined. Of the functions and of the modules that it stands in, such as
/// the instances of a template, those are named that have most of its time.
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
    let sums = by_frame(context, |frame| places.line_of(frame));
    let rows = sums.into_iter().map(|(id, sum)| {
        let place = places.line(id);
        let known = stands_in.get(&id);
        let function = known.and_then(|(functions, _)| most(functions));
        let module = known.and_then(|(_, modules)| most(modules));
        CodeRow {
            name: place.name.clone(),
            function: function.unwrap_or(place.function.as_str()).to_owned(),
            module: places
                .module_path(module.unwrap_or(place.module))
                .to_owned(),
            file: place.file.clone(),
            line: place.line,
            address: None,
            share: sum.share(context),
        }
    });
    sorted(rows.collect())
}

/// By instruction: the access that was waited for, or the sampled one where none was.
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
            share: sum.share(context),
        }
    });
    sorted(rows.collect())
}

/// Sums by what `key` gives for the frame of an access or of a sample without one; rows
/// that no sample fell into are left out.
pub(crate) fn by_frame<K: Ord>(
    context: &Context<'_>,
    key: impl Fn(FrameId) -> K,
) -> impl IntoIterator<Item = (K, Sum)> {
    let frame_of = |part: &crate::parts::Part| context.run.sites[part.site.index()].frame;
    let mut sums = rows::grouped(context, |part| Some(key(frame_of(part))));
    for plain in &context.plain {
        sums.entry(key(plain.frame)).or_default().add_plain(plain);
    }
    sums.into_iter().filter(|(_, sum)| sum.time_ns > 0.0)
}

fn sorted(mut rows: Vec<CodeRow>) -> Vec<CodeRow> {
    rows.sort_by(|a, b| {
        rows::order((&a.share, &a.name), (&b.share, &b.name)).then(a.address.cmp(&b.address))
    });
    rows
}
