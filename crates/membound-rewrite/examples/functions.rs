//! Counts functions, blocks and what could not be resolved in the files given; with
//! `FILE --function ADDRESS`, shows one function's blocks.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Instant;

use membound_rewrite::code::{BlockEnd, Function, Knowledge, Tables, Unresolved};
use membound_rewrite::image::Image;
use rayon::prelude::*;

#[derive(Default)]
struct Counts {
    functions: usize,
    instructions: usize,
    blocks: usize,
    tables: usize,
    with_jump: usize,
    unresolved: BTreeMap<&'static str, Vec<u64>>,
    tail_calls: usize,
}

impl Counts {
    fn of(function: &Function) -> Self {
        let count = |end| {
            let blocks = function.blocks.iter();
            blocks.filter(|block| block.leaves_by == end).count()
        };
        let mut counts = Self {
            functions: 1,
            instructions: function.instructions.len(),
            blocks: function.blocks.len(),
            tables: count(BlockEnd::Table),
            tail_calls: count(BlockEnd::TailCall),
            ..Self::default()
        };
        let open = count(BlockEnd::Unresolved);
        counts.with_jump = usize::from(counts.tables + open > 0);
        let (kind, at) = match function.unresolved {
            None => return counts,
            Some(Unresolved::IndirectJump(at)) => ("jump", at),
            Some(Unresolved::Undecodable(at)) => ("undecodable", at),
            Some(Unresolved::EnteredInside(at)) => ("entered inside", at),
        };
        counts.unresolved.insert(kind, vec![at]);
        counts
    }

    fn add(mut self, other: Self) -> Self {
        self.functions += other.functions;
        self.instructions += other.instructions;
        self.blocks += other.blocks;
        self.tables += other.tables;
        self.with_jump += other.with_jump;
        self.tail_calls += other.tail_calls;
        for (kind, at) in other.unresolved {
            self.unresolved.entry(kind).or_default().extend(at);
        }
        self
    }
}

/// Shows the blocks of the function that an address lies in.
fn show(
    out: &mut impl std::io::Write,
    path: &str,
    address: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let data = std::fs::read(path)?;
    let image = Image::parse(&data)?;
    let knowledge = Knowledge::gather(&image, Tables::Resolve);
    let index = image
        .function_at(address)
        .ok_or("no function at this address")?;
    let function = Function::decode(&image, &knowledge, index);
    writeln!(out, "{:x?} {:?}", function.bounds, function.unresolved)?;
    for (number, block) in function.blocks.iter().enumerate() {
        let instructions = function.block_instructions(block);
        let first = instructions.first().map_or(0, |first| first.ip());
        writeln!(
            out,
            "{number}: {first:#x}, {} instructions{}{}, {:x?} -> {:?} {:?}",
            instructions.len(),
            instructions
                .last()
                .map_or(String::new(), |last| format!(", last {last}")),
            if block.entered_from_outside {
                ", entered"
            } else {
                ""
            },
            block.leaves_by,
            block
                .successors
                .iter()
                .map(|block| block.0)
                .collect::<Vec<_>>(),
            block.landing_pad.map(|block| block.0),
        )?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [path, option, address] = &arguments[..]
        && option == "--function"
    {
        let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
        return show(&mut out, path, address);
    }
    for path in arguments {
        let data = std::fs::read(&path)?;
        let begin = Instant::now();
        let image = match Image::parse(&data) {
            Ok(image) => image,
            Err(error) => {
                writeln!(out, "{path}: {error}")?;
                continue;
            }
        };
        let parsed = begin.elapsed();
        let knowledge = Knowledge::gather(&image, Tables::Resolve);
        let gathered = begin.elapsed();
        let counts = (0..image.functions().len())
            .into_par_iter()
            .map(|index| Counts::of(&Function::decode(&image, &knowledge, index)))
            .reduce(Counts::default, Counts::add);
        let decoded = begin.elapsed();
        writeln!(
            out,
            "{path}: {:?}, {:?}, {} functions, {} instructions, {} blocks, {} tables in {} functions, {} tail calls",
            image.kind(),
            image.convention(),
            counts.functions,
            counts.instructions,
            counts.blocks,
            counts.tables,
            counts.with_jump,
            counts.tail_calls,
        )?;
        writeln!(
            out,
            "  read {parsed:?}, gathered {:?}, decoded {:?}",
            gathered - parsed,
            decoded - gathered
        )?;
        for (kind, mut at) in counts.unresolved {
            at.sort_unstable();
            writeln!(out, "  {}: {}", kind, at.len())?;
            for at in at.iter().take(12) {
                let name = image
                    .function_at(*at)
                    .and_then(|index| image.functions()[index].name.clone());
                writeln!(out, "    {at:#x} {}", name.unwrap_or_default())?;
            }
        }
    }
    Ok(())
}
