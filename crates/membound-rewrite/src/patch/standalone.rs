//! A plan for code that is in no file.

use super::function::{self, Subject};
use super::plan::FunctionView;
use super::planner::{Assembly, Part};
use super::trampoline::Chunk;
use super::{Options, Plan};
use crate::code::Function;
use crate::flow::{Analyst, Conventions, Liveness, Summaries};
use crate::image::Convention;

impl Plan {
    /// Plans the one function that `bytes` are, at the address `at`, with nothing known of
    /// its surroundings: everything is alive where it returns or calls. It is placed with
    /// a bias of 0.
    #[must_use]
    pub fn of_code(bytes: &[u8], at: u64, options: &Options) -> Self {
        let function = Function::from_code(bytes, at);
        let summaries = Summaries::default();
        let conventions = Conventions {
            convention: Convention::Unknown,
            summaries: &summaries,
        };
        let mut analyst = Analyst::new();
        let liveness = Liveness::of(&function, &conventions, &mut analyst);
        let subject = Subject {
            function: &function,
            bytes,
            liveness: &liveness,
        };
        let origin = at & !4095;
        let mut chunk = Chunk::new(origin);
        let found = function::plan(&subject, options, &mut analyst, &mut chunk);
        let part = Part {
            chunk,
            found: vec![(FunctionView::of(&function), found)],
        };
        let assembly = Assembly {
            origin,
            end: at.saturating_add(bytes.len() as u64),
            identity: Vec::new(),
            options,
        };
        assembly.plan(vec![part], |offset, length| {
            let start = usize::try_from(origin + u64::from(offset) - at).ok()?;
            bytes.get(start..start.checked_add(length)?)
        })
    }
}
