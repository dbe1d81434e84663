//! A plan for code that is not part of a file.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::assembly::{Assembly, Part};
use super::function;
use super::subject::Subject;
use super::trampoline::Chunk;
use super::views::FunctionView;
use super::{Body, Hooks, Options, Plan, VectorLevel};
use crate::code::Function;
use crate::flow::{Analyst, Conventions, Liveness, Summaries};
use crate::image::Convention;

impl Plan {
    /// Plans the single function `bytes` at the address `at`. Nothing is known of the code around it, so all
    /// state counts as alive where it returns or calls. Place the plan with a bias of 0.
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
            unused: conventions.unused_vectors(&function),
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

/// A name for the code that [`super::Body::Sample`] executes around a timed load. Builds with different code
/// have different names, so that their latencies are not compared with each other.
#[must_use]
pub fn sampler_identity() -> String {
    // mov rax, [rdi]; ret
    const LOAD: &[u8] = &[0x48, 0x8b, 0x07, 0xc3];
    let options = Options {
        hooks: Hooks::LeaveOut,
        vectors: VectorLevel::Sse,
        ..Options::new(Body::Sample)
    };
    // No-operations make room for the jump.
    let mut bytes = LOAD.to_vec();
    bytes.splice(3..3, [0x90; 8]);
    let plan = Plan::of_code(&bytes, 0x1000, &options);
    let mut name = String::from("lfence-rdtsc-");
    for byte in Sha256::digest(plan.as_bytes()).iter().take(6) {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::{Sites, Yield};

    #[test]
    fn the_sampler_has_a_stable_name() {
        let name = sampler_identity();
        assert_eq!(name, sampler_identity());
        let options = Options::new(Body::Sample);
        let plan = Plan::of_code(&[0x48, 0x8b, 0x07, 0x90, 0x90, 0xc3], 0x1000, &options);
        assert_eq!(plan.sites().filter(|site| site.number.is_ok()).count(), 1);
    }

    #[test]
    fn neighbours_with_bodies_of_their_own_move_together() {
        // 1000: mov eax,edi; 1002: mov rax,[rdi]; 1005: add eax,esi; 1007: call 1100; 100c: ret
        let code = [
            0x89, 0xf8, 0x48, 0x8b, 0x07, 0x01, 0xf0, 0xe8, 0xf4, 0, 0, 0, 0xc3, 0x90, 0x90, 0x90,
            0x90,
        ];
        let miss = Body::Yield(Yield::Miss {
            cost: 3,
            own_base: false,
        });
        let options = Options {
            hooks: Hooks::LeaveOut,
            sites: Sites::Instructions(vec![0x1000, 0x1002, 0x1007, 0x100c]),
            bodies: vec![(0x1000, Body::Count { exact: true }), (0x1002, miss)],
            ..Options::new(Body::Yield(Yield::Base))
        };
        let plan = Plan::of_code(&code, 0x1000, &options);
        let sites: Vec<_> = plan.sites().map(|it| (it.address, it.number)).collect();
        let placed = [0x1000, 0x1002, 0x1007, 0x100c]
            .into_iter()
            .zip((0..4).map(Ok));
        assert_eq!(sites, placed.collect::<Vec<_>>());
        // Two jumps: one for everything before the call.
        let edits: Vec<(u32, u16)> = plan.edits().map(|it| (it.text, it.sites)).collect();
        assert_eq!(edits, [(0, 3), (0xc, 1)]);
        // The words have the size that the largest body needs.
        assert_eq!(plan.data_words(1).unwrap().len(), 8);
    }
}
