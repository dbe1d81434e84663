//! Functions and source lines of frames.
//!
//! A **function** is one that is not inlined, because only such a function has an address, a listing and
//! executions of its own. A **line** is the innermost one: where the access is written in the source,
//! whichever inlined function that is. Call chains show both.

use std::hash::Hash;

use membound_run::{Frame, FrameId, Location, ModuleId, RunData};
use rustc_hash::FxHashMap;

use crate::names;

/// Position in [`Places::functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FunctionId(pub u32);

/// Position in [`Places::lines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LineId(pub u32);

/// A function that is not inlined.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FunctionPlace {
    pub name: String,
    pub module: Option<ModuleId>,
    pub file: Option<String>,
    /// First of its lines that occurs in the run.
    pub line: Option<u32>,
    pub start: Option<u64>,
    pub size: Option<u64>,
}

/// Source line, or its function if lines are unknown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LinePlace {
    /// `file:line`, else the name of the function.
    pub name: String,
    /// Innermost function, inlined or not.
    pub function: String,
    pub module: Option<ModuleId>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

/// Functions and lines of all frames of a run.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    run: &'a RunData,
    /// Index in `order` of each frame's first location; one more entry than there are frames.
    starts: Vec<u32>,
    order: Vec<u32>,
    function_of: Vec<FunctionId>,
    line_of: Vec<LineId>,
    pub functions: Vec<FunctionPlace>,
    pub lines: Vec<LinePlace>,
    short: FxHashMap<&'a str, &'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum FunctionKey<'a> {
    /// Function with a known start address.
    Start(Option<ModuleId>, u64),
    /// Function known only by name.
    Name(Option<ModuleId>, &'a str),
    /// All code of a module without a known function.
    Unknown(Option<ModuleId>),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum LineKey<'a> {
    Line(&'a str, u32),
    Function(FunctionId),
}

impl<'a> Places<'a> {
    /// Resolves all frames of `run`.
    pub(crate) fn new(run: &'a RunData) -> Self {
        let (starts, order) = by_frame(run);
        let files = run.locations.iter().filter_map(|at| at.file.as_deref());
        let mut places = Self {
            run,
            starts,
            order,
            function_of: Vec::with_capacity(run.frames.len()),
            line_of: Vec::with_capacity(run.frames.len()),
            functions: Vec::new(),
            lines: Vec::new(),
            short: names::short_paths(files),
        };
        let mut functions = FxHashMap::default();
        let mut lines = FxHashMap::default();
        for (index, frame) in run.frames.iter().enumerate() {
            let id = FrameId(index as u32);
            let function = places.function_place(id, *frame, &mut functions);
            places.function_of.push(function);
            let line = places.line_place(id, *frame, function, &mut lines);
            places.line_of.push(line);
        }
        places
    }

    /// Locations of a frame, innermost first; none if nothing is known.
    pub(crate) fn locations(
        &self,
        frame: FrameId,
    ) -> impl DoubleEndedIterator<Item = &'a Location> + use<'a, '_> {
        let range = self.starts[frame.index()] as usize..self.starts[frame.index() + 1] as usize;
        self.order[range]
            .iter()
            .map(|&at| &self.run.locations[at as usize])
    }

    pub(crate) fn function_of(&self, frame: FrameId) -> FunctionId {
        self.function_of[frame.index()]
    }

    /// Name of a frame's innermost function, inlined or not.
    pub(crate) fn innermost(&self, frame: FrameId) -> &str {
        let location = self.locations(frame).next();
        match location.map(|at| at.function.as_str()) {
            Some(name) if !name.is_empty() => name,
            _ => &self.function(self.function_of(frame)).name,
        }
    }

    pub(crate) fn line_of(&self, frame: FrameId) -> LineId {
        self.line_of[frame.index()]
    }

    pub(crate) fn function(&self, id: FunctionId) -> &FunctionPlace {
        &self.functions[id.0 as usize]
    }

    pub(crate) fn line(&self, id: LineId) -> &LinePlace {
        &self.lines[id.0 as usize]
    }

    /// Path of a module; empty if unknown.
    pub(crate) fn module_path(&self, module: Option<ModuleId>) -> &'a str {
        module.map_or("", |module| &self.run.modules[module.index()].path)
    }

    /// Shortest end of a source file's path that distinguishes it from the others.
    pub(crate) fn short_file<'s>(&self, file: &'s str) -> &'s str
    where
        'a: 's,
    {
        self.short.get(file).copied().unwrap_or(file)
    }

    /// `module+address` of a frame with unknown function and line.
    pub(crate) fn bare_name(&self, frame: Frame) -> String {
        match frame.module {
            Some(module) => {
                let path = &self.run.modules[module.index()].path;
                format!("{}+{:#x}", names::file_name(path), frame.address)
            }
            None => format!("{:#x}", frame.address),
        }
    }

    fn function_place(
        &mut self,
        id: FrameId,
        frame: Frame,
        known: &mut FxHashMap<FunctionKey<'a>, FunctionId>,
    ) -> FunctionId {
        let outermost = self.locations(id).next_back();
        let key = match outermost {
            Some(at) => match at.function_start {
                Some(start) => FunctionKey::Start(frame.module, start),
                None if !at.function.is_empty() => FunctionKey::Name(frame.module, &at.function),
                None => FunctionKey::Unknown(frame.module),
            },
            None => FunctionKey::Unknown(frame.module),
        };
        let line = outermost.and_then(|at| at.line);
        if let Some(&function) = known.get(&key) {
            let place = &mut self.functions[function.0 as usize];
            place.line = match (place.line, line) {
                (Some(first), Some(line)) => Some(first.min(line)),
                (first, line) => first.or(line),
            };
            return function;
        }
        let name = match (key, outermost) {
            (_, Some(at)) if !at.function.is_empty() => at.function.clone(),
            (FunctionKey::Start(module, address), _) => self.bare_name(Frame { module, address }),
            _ => match frame.module {
                Some(module) => {
                    format!(
                        "unknown in {}",
                        names::file_name(&self.run.modules[module.index()].path)
                    )
                }
                None => "unknown".to_owned(),
            },
        };
        let function = FunctionId(self.functions.len() as u32);
        self.functions.push(FunctionPlace {
            name,
            module: frame.module,
            file: outermost.and_then(|at| at.file.clone()),
            line,
            start: outermost.and_then(|at| at.function_start),
            size: outermost.and_then(|at| at.function_size),
        });
        known.insert(key, function);
        function
    }

    fn line_place(
        &mut self,
        id: FrameId,
        frame: Frame,
        function: FunctionId,
        known: &mut FxHashMap<LineKey<'a>, LineId>,
    ) -> LineId {
        let innermost = self.locations(id).next();
        let key = match innermost.map(|at| (at.file.as_deref(), at.line)) {
            Some((Some(file), Some(line))) => LineKey::Line(file, line),
            _ => LineKey::Function(function),
        };
        if let Some(&line) = known.get(&key) {
            return line;
        }
        let place = LinePlace {
            name: match key {
                LineKey::Line(file, line) => format!("{}:{line}", self.short_file(file)),
                LineKey::Function(_) => self.function(function).name.clone(),
            },
            function: self.innermost(id).to_owned(),
            module: frame.module,
            file: innermost.and_then(|at| at.file.clone()),
            line: innermost.and_then(|at| at.line),
        };
        let line = LineId(self.lines.len() as u32);
        self.lines.push(place);
        known.insert(key, line);
        line
    }
}

/// Positions of locations sorted by frame and, within a frame, by depth.
fn by_frame(run: &RunData) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0_u32; run.frames.len() + 1];
    for location in &run.locations {
        starts[location.frame.index() + 1] += 1;
    }
    for index in 1..starts.len() {
        starts[index] += starts[index - 1];
    }
    let mut order: Vec<u32> = (0..run.locations.len() as u32).collect();
    order.sort_by_key(|&at| {
        let location = &run.locations[at as usize];
        (location.frame, location.depth)
    });
    (starts, order)
}
