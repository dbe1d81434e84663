//! Time, stall and accesses by pair of function and object.

use membound_types::FunctionObjectRow;

use crate::context::Context;
use crate::rows;

/// Most rows of the table; in programs with many objects, most pairs have hardly any stall.
const MAX_ROWS: usize = 2000;

/// Rows by function and object, most stalled first.
pub(crate) fn pairs(context: &Context<'_>) -> Vec<FunctionObjectRow> {
    let places = &context.places;
    let sums = rows::grouped(context, |part| {
        let frame = context.run.sites[part.site.index()].frame;
        Some((places.function_of(frame), part.group))
    });
    let mut table: Vec<FunctionObjectRow> = sums
        .into_iter()
        .map(|((function, group), sum)| {
            let function = places.function(function);
            FunctionObjectRow {
                function: function.name.clone(),
                module: places.module_path(function.module).to_owned(),
                object: context.groups.get(group).name.clone(),
                share: sum.share(context),
            }
        })
        .collect();
    table.sort_by(|a, b| {
        rows::order((&a.share, &a.function), (&b.share, &b.function))
            .then_with(|| a.object.cmp(&b.object))
    });
    table.truncate(MAX_ROWS);
    table
}
