//! Time and stall by function, source line and instruction.

use std::collections::BTreeMap;

use membound_run::FrameId;
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

/// By source line: the innermost, wherever it is inlined. Of the functions that it stands in,
/// such as the instances of a template, the one is named that has most of its time.
pub(crate) fn lines(context: &Context<'_>) -> Vec<CodeRow> {
    let places = &context.places;
    let mut named: BTreeMap<LineId, (f64, &str)> = BTreeMap::new();
    let by_function = by_frame(context, |frame| {
        (places.line_of(frame), places.innermost(frame))
    });
    for ((line, function), sum) in by_function {
        let most = named.entry(line).or_insert((sum.time_ns, function));
        if sum.time_ns > most.0 {
            *most = (sum.time_ns, function);
        }
    }
    let sums = by_frame(context, |frame| places.line_of(frame));
    let rows = sums.into_iter().map(|(id, sum)| {
        let place = places.line(id);
        CodeRow {
            name: place.name.clone(),
            function: named
                .get(&id)
                .map_or(place.function.as_str(), |(_, function)| function)
                .to_owned(),
            module: places.module_path(place.module).to_owned(),
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
