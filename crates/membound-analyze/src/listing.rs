//! Text of instructions, and listings of source and assembly of hot functions with their figures.

use std::collections::BTreeMap;

use iced_x86::{Formatter as _, Instruction, IntelFormatter};
use membound_model::stall::Executed;
use membound_run::{FrameId, ModuleId, RunData};
use membound_types::{ListedInstruction, ListedLine, Listing};
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::decoding::{Functions, decoder};
use crate::places::{FunctionId, Places};
use crate::rows::by_frame;

/// Source lines shown before the first and after the last line with a sample.
const SURROUNDING_LINES: u32 = 4;

/// Most source lines of a listing. A function may contain inlined code from all over a file, which is not
/// its own.
const MAX_LINES: u32 = 600;

/// Formats instructions in Intel syntax, from the machine code that a run contains.
pub(crate) struct Texts<'a> {
    run: &'a RunData,
    places: &'a Places<'a>,
    functions: Functions<'a>,
    /// Text of accesses as the recorder wrote it.
    sites: FxHashMap<FrameId, &'a str>,
}

impl<'a> Texts<'a> {
    pub(crate) fn new(run: &'a RunData, places: &'a Places<'a>) -> Self {
        Self {
            run,
            places,
            functions: Functions::new(run),
            sites: run
                .sites
                .iter()
                .filter(|site| !site.text.is_empty())
                .map(|site| (site.frame, site.text.as_str()))
                .collect(),
        }
    }

    /// Text of the instruction at `frame`: decoded from its bytes, so that all look alike; else the
    /// recorded text; else its module and address.
    pub(crate) fn of(&self, frame: FrameId) -> String {
        let place = self.run.frames[frame.index()];
        let decoded = place
            .module
            .and_then(|module| self.decode(module, place.address));
        decoded
            .or_else(|| self.sites.get(&frame).map(|&text| text.to_owned()))
            .unwrap_or_else(|| self.places.bare_name(place))
    }

    fn decode(&self, module: ModuleId, address: u64) -> Option<String> {
        let instruction = self.functions.from(module, address)?.decode();
        (!instruction.is_invalid()).then(|| text(&mut formatter(), &instruction))
    }
}

fn formatter() -> IntelFormatter {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_space_after_operand_separator(true);
    options.set_rip_relative_addresses(true);
    options.set_branch_leading_zeros(false);
    options.set_uppercase_hex(false);
    formatter
}

fn text(formatter: &mut IntelFormatter, instruction: &Instruction) -> String {
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    text
}

/// Figures of one instruction.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    frame: Option<FrameId>,
    time_ns: f64,
    stall_ns: f64,
    executions: Option<Executed>,
}

/// Listings of source and assembly of the functions with most stall.
pub(crate) fn listings(context: &Context<'_>, texts: &Texts<'_>) -> Vec<Listing> {
    let places = &context.places;
    let mut functions: BTreeMap<FunctionId, (f64, f64)> = BTreeMap::new();
    let mut figures: BTreeMap<FunctionId, BTreeMap<u64, Figures>> = BTreeMap::new();
    for (frame, sum) in by_frame(context, |frame| frame) {
        let function = places.function_of(frame);
        let of_function = functions.entry(function).or_default();
        of_function.0 += sum.stall_ns;
        of_function.1 += sum.time_ns;
        let address = context.run.frames[frame.index()].address;
        let figure = figures
            .entry(function)
            .or_default()
            .entry(address)
            .or_default();
        figure.frame = Some(frame);
        figure.time_ns += sum.time_ns;
        figure.stall_ns += sum.stall_ns;
        figure.executions = sum.loads.or(sum.stores);
    }
    let mut hottest: Vec<(FunctionId, (f64, f64))> = functions
        .into_iter()
        .filter(|(_, (_, time_ns))| {
            context.times.share(*time_ns) >= context.options.thresholds.listed_function
        })
        .collect();
    hottest.sort_by(|(a, of_a), (b, of_b)| {
        (of_b.0.total_cmp(&of_a.0))
            .then(of_b.1.total_cmp(&of_a.1))
            .then(a.cmp(b))
    });
    hottest
        .into_iter()
        .take(context.options.listings)
        .filter_map(|(function, _)| listing(context, texts, function, &figures[&function]))
        .collect()
}

fn listing(
    context: &Context<'_>,
    texts: &Texts<'_>,
    id: FunctionId,
    figures: &BTreeMap<u64, Figures>,
) -> Option<Listing> {
    let function = context.places.function(id);
    let assembly = function.module.map_or_else(Vec::new, |module| {
        assembly(context, texts, id, module, figures)
    });
    let (file, source) = source(context, id, figures);
    (!assembly.is_empty() || !source.is_empty()).then(|| Listing {
        function: function.name.clone(),
        module: context.places.module_path(function.module).to_owned(),
        file,
        source,
        assembly,
    })
}

fn assembly(
    context: &Context<'_>,
    texts: &Texts<'_>,
    id: FunctionId,
    module: ModuleId,
    figures: &BTreeMap<u64, Figures>,
) -> Vec<ListedInstruction> {
    let function = context.places.function(id);
    let Some(any) = function.start.or_else(|| figures.keys().next().copied()) else {
        return Vec::new();
    };
    let Some(code) = texts.functions.containing(module, any) else {
        return Vec::new();
    };
    let mut formatter = formatter();
    let mut listed = Vec::new();
    let mut line = None;
    for instruction in &mut decoder(&code.bytes, code.address) {
        let figure = figures.get(&instruction.ip()).copied().unwrap_or_default();
        if let Some(frame) = figure.frame {
            let place = context.places.line(context.places.line_of(frame));
            line = place.line;
        }
        listed.push(ListedInstruction {
            address: instruction.ip(),
            text: text(&mut formatter, &instruction),
            line: figure.frame.and(line),
            time_fraction: context.times.share(figure.time_ns),
            stall_fraction: context.times.share(figure.stall_ns),
            executions: figure.executions.map(|executed| executed.count),
            executions_low: figure.executions.map(|executed| executed.low),
            executions_high: figure.executions.map(|executed| executed.high),
        });
    }
    listed
}

/// Source file of a function and its lines, from the first to the last with a sample.
fn source(
    context: &Context<'_>,
    id: FunctionId,
    figures: &BTreeMap<u64, Figures>,
) -> (Option<String>, Vec<ListedLine>) {
    let function = context.places.function(id);
    let Some(file) = function.file.as_deref() else {
        return (None, Vec::new());
    };
    let mut lines: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for figure in figures.values() {
        // A line inlined from another file counts for the line of this function's own file that it is
        // inlined into.
        let at = figure.frame.into_iter().flat_map(|frame| {
            let mut locations = context.places.locations(frame);
            locations.find(|at| at.file.as_deref() == Some(file))
        });
        for line in at.filter_map(|at| at.line) {
            let sum = lines.entry(line).or_default();
            sum.0 += figure.time_ns;
            sum.1 += figure.stall_ns;
        }
    }
    let (Some((&first, _)), Some((&last, _))) = (lines.first_key_value(), lines.last_key_value())
    else {
        return (None, Vec::new());
    };
    let Some(text) = context.options.sources.text(file) else {
        return (None, Vec::new());
    };
    let first = function.line.map_or(first, |line| line.min(first));
    let from = first.saturating_sub(SURROUNDING_LINES).max(1);
    let to = last
        .saturating_add(SURROUNDING_LINES)
        .min(from.saturating_add(MAX_LINES));
    let source = (1_u32..)
        .zip(text.lines())
        .skip_while(|(line, _)| *line < from)
        .take_while(|(line, _)| *line <= to)
        .map(|(line, text)| {
            let (time_ns, stall_ns) = lines.get(&line).copied().unwrap_or_default();
            ListedLine {
                line,
                text: text.to_owned(),
                time_fraction: context.times.share(time_ns),
                stall_fraction: context.times.share(stall_ns),
            }
        })
        .collect();
    (Some(file.to_owned()), source)
}
