//! Plans one function: chooses its sites and hooks and writes their trampolines.

use std::iter::Peekable;

use iced_x86::{Code, FlowControl, Instruction};

use super::blocks::{self, ChosenInstruction};
use super::body::SettledBody;
use super::companions;
use super::cycle::TrampolineLoop;
use super::group::{self, FunctionContext, Group, Item};
use super::loop_saves::LoopSaves;
use super::operand::Operand;
use super::relocate::Form;
use super::subject::{Subject, is_overlapped, is_untouchable, movable};
use super::surroundings::Surroundings;
use super::trampoline::{Chunk, InsertedBodies, Work, WorkKind};
use super::views::HookState;
use super::wraps::{self, Wrap};
use super::{Body, Hooks, Options, Refusal, Sites, syscalls, yields};
use crate::RegisterSet;
use crate::flow::{Access, Analyst, Direction, access};

/// An instruction that was to be patched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    /// Index of the instruction in its function.
    pub instruction: usize,
    /// Address of the instruction in the file.
    pub at: u64,
    /// The site's address: the instruction's own, or its block's if blocks were selected.
    pub address: u64,
    /// Whether the instruction loads, stores or both.
    pub direction: Direction,
    /// The site's number in its chunk, or why it has none.
    pub number: Result<u32, Refusal>,
}

/// A `syscall` instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hook {
    /// Address of the instruction in the file.
    pub address: u64,
    /// The system call's number, if it is known.
    pub number: Option<u32>,
    /// Whether the agent sees the call.
    pub state: HookState,
    instruction: usize,
}

/// What was found and planned in a function.
#[derive(Debug, Default)]
pub(super) struct PlannedFunction {
    /// Sorted by address.
    pub sites: Vec<Site>,
    /// Sorted by address.
    pub hooks: Vec<Hook>,
    /// Sorted by address.
    pub wraps: Vec<Wrap>,
    /// The groups formed.
    pub groups: Vec<group::Group>,
}

/// Plans a function and writes its trampolines into `chunk`.
pub(super) fn plan(
    subject: &Subject<'_>,
    options: &Options,
    analyst: &mut Analyst,
    chunk: &mut Chunk,
) -> PlannedFunction {
    let mut search = Search {
        subject,
        options,
        analyst,
        untouched: None,
        bodies: Vec::new(),
        found: PlannedFunction::default(),
    };
    let mut items = search.all(chunk.out.origin);
    let Search {
        bodies, mut found, ..
    } = search;
    found.wraps = wraps::plan(subject.function, &chunk.wrapped, &mut items);
    if bodies.is_empty() && found.wraps.is_empty() {
        return found;
    }
    let context = FunctionContext {
        function: subject.function,
        items: &items,
        bytes: subject.bytes,
        closes_loops: options.closes_loops,
    };
    let groups = group::find(&context);
    for (index, refusal) in groups.refused {
        refuse(&mut found, index, refusal);
    }
    let before = InsertedBodies {
        bodies: &bodies,
        wraps: &found.wraps,
    };
    for group in &groups.groups {
        let trampoline_loop = trampoline_loop_of(&context, group, &before, options, analyst);
        chunk.trampoline(
            &context,
            group,
            &before,
            trampoline_loop.as_ref(),
            |index, number| {
                if let Some(site) = site_at(&mut found.sites, index) {
                    site.number = Ok(number);
                }
            },
        );
    }
    for site in &mut found.sites {
        // The instruction is in no block: no known control flow reaches it.
        if site.number == Ok(u32::MAX) {
            site.number = Err(Refusal::Undecodable);
        }
    }
    found.groups = groups.groups;
    found
}

/// A search for sites and hooks in a function.
struct Search<'a> {
    subject: &'a Subject<'a>,
    options: &'a Options,
    analyst: &'a mut Analyst,
    /// State that the function does not write; computed at the first yield.
    untouched: Option<RegisterSet>,
    /// Bodies to insert, each with the index of the instruction that it precedes.
    bodies: Vec<(usize, Work)>,
    found: PlannedFunction,
}

impl Search<'_> {
    /// Finds all sites and hooks; returns an item for each instruction. Trampolines will lie near `origin`.
    fn all(&mut self, origin: u64) -> Vec<Item> {
        let subject = self.subject;
        let mut blocks = match &self.options.sites {
            Sites::Blocks(starts) => blocks::choose(subject, starts, self.options, origin),
            Sites::All | Sites::At(_) | Sites::Instructions(_) => Vec::new(),
        }
        .into_iter()
        .peekable();
        let instructions = subject.function.instructions.iter().enumerate();
        instructions
            .map(|(index, instruction)| {
                let mut item = Item {
                    form: movable(subject, instruction, origin),
                    ..Item::default()
                };
                let selected = selected_site(self.options, index, instruction, &mut blocks);
                if instruction.code() == Code::Syscall {
                    if self.options.hooks != Hooks::LeaveOut {
                        self.hook(index, &mut item);
                    }
                    // A block that consists of the system call alone.
                    if let Some((address, _)) = selected {
                        self.add_site(index, address, None, Err(Refusal::NotRelocatable));
                    }
                } else if let Some((address, access)) = selected {
                    item.call = is_call(self.options, instruction);
                    let number = match self.body(index, address, access.as_ref()) {
                        Ok(body) => {
                            item.has_site = true;
                            self.insert(index, body, WorkKind::Site);
                            Ok(u32::MAX)
                        }
                        Err(refusal) => Err(refusal),
                    };
                    self.add_site(index, address, access, number);
                }
                item
            })
            .collect()
    }

    /// The body of the site at this instruction, whose address is `address`.
    fn body(
        &mut self,
        index: usize,
        address: u64,
        access: Option<&Access>,
    ) -> Result<SettledBody, Refusal> {
        let Self {
            subject, options, ..
        } = *self;
        let instruction = &subject.function.instructions[index];
        let body = options.body_at(address);
        if is_untouchable(subject.function, instruction) {
            return Err(Refusal::Rseq);
        }
        if lacks_operand(options, body, instruction, access) {
            return Err(Refusal::Operand);
        }
        if is_overlapped(subject.function, instruction) {
            return Err(Refusal::UnresolvedFlow);
        }
        let around = match body {
            Body::Yield(_) => self.before_switch(index),
            _ => Surroundings::before(subject.liveness, index),
        };
        let companions =
            |operand| companions::of(&subject.function.instructions, index, operand, self.analyst);
        SettledBody::settle(body, options, around, instruction, access, companions)
    }

    /// The surroundings of a body that switches to another context, which saves what is alive.
    fn before_switch(&mut self, index: usize) -> Surroundings {
        let Self {
            subject, options, ..
        } = *self;
        let untouched = *self.untouched.get_or_insert_with(|| {
            yields::untouched_state(&subject.function.instructions, self.analyst)
        });
        let mut around = Surroundings::before(subject.liveness, index);
        around.live = yields::state_to_save(around.live, untouched, subject.unused, options);
        around
    }

    /// Adds the hook of a `syscall` instruction.
    fn hook(&mut self, index: usize, item: &mut Item) {
        let Self {
            subject, options, ..
        } = *self;
        let instruction = &subject.function.instructions[index];
        let number = syscalls::number(subject.function, index, self.analyst);
        let may_wait = syscalls::may_wait(number, options.hooks);
        let is_seen = syscalls::is_seen(number, options.hooks)
            && !syscalls::may_lack_stack(subject.function, index, number, self.analyst);
        let state = if !may_wait && !is_seen {
            HookState::NotNeeded
        } else if is_untouchable(subject.function, instruction) {
            HookState::Refused(Refusal::Rseq)
        } else if is_overlapped(subject.function, instruction) {
            HookState::Refused(Refusal::UnresolvedFlow)
        } else {
            let settled = match may_wait {
                true => SettledBody::wait(self.before_switch(index), options),
                false => SettledBody::syscall(Surroundings::before(subject.liveness, index)),
            };
            match settled {
                Ok(body) => {
                    item.form = Some(Form::Verbatim);
                    item.has_site = true;
                    item.at_any_price = true;
                    self.insert(index, body, WorkKind::Hook);
                    HookState::Hooked
                }
                Err(refusal) => HookState::Refused(refusal),
            }
        };
        self.found.hooks.push(Hook {
            address: instruction.ip(),
            number,
            state,
            instruction: index,
        });
    }

    fn insert(&mut self, index: usize, body: SettledBody, kind: WorkKind) {
        self.bodies.push((index, Work { body, kind }));
    }

    fn add_site(
        &mut self,
        index: usize,
        address: u64,
        access: Option<Access>,
        number: Result<u32, Refusal>,
    ) {
        self.found.sites.push(Site {
            instruction: index,
            at: self.subject.function.instructions[index].ip(),
            address,
            direction: access.map_or(Direction::Both, |access| access.direction),
            number,
        });
    }
}

/// The loop at the start of a group, if it is to lie in the group's trampoline as a whole.
fn trampoline_loop_of(
    context: &FunctionContext<'_>,
    group: &Group,
    before: &InsertedBodies<'_>,
    options: &Options,
    analyst: &mut Analyst,
) -> Option<TrampolineLoop> {
    let members = group.first..group.end;
    let is_wrapped = before
        .wraps
        .iter()
        .any(|wrap| members.contains(&wrap.instruction));
    if !context.closes_loops || is_wrapped {
        return None;
    }
    let mut trampoline_loop = TrampolineLoop::of(&context.function.instructions, members, analyst)?;
    let members = group.first..trampoline_loop.end;
    let forms = context.items[members.clone()].iter().map(|item| item.form);
    let bodies: Vec<(usize, SettledBody)> = before
        .bodies
        .iter()
        .filter(|(index, _)| members.contains(index))
        .map(|(index, work)| (*index, work.body))
        .collect();
    let instructions = &context.function.instructions[members.clone()];
    let settled = bodies.iter().map(|(_, body)| *body);
    trampoline_loop.saves = LoopSaves::of(instructions, forms, settled, options, analyst);
    if let (Some(_), [(index, body)]) = (trampoline_loop.saves, &bodies[..])
        && *index == group.first
        && let Some(iterations) = body.iterations(&trampoline_loop)
    {
        trampoline_loop.copies = iterations
            .max_copies_log2()
            .min(TrampolineLoop::max_copies_log2(instructions));
    }
    Some(trampoline_loop)
}

/// The address of the site at this instruction, if the options select it, and its access to memory. `blocks`
/// are the instructions chosen for selected blocks.
fn selected_site(
    options: &Options,
    index: usize,
    instruction: &Instruction,
    blocks: &mut Peekable<impl Iterator<Item = ChosenInstruction>>,
) -> Option<(u64, Option<Access>)> {
    let access = access(instruction);
    if let Sites::Blocks(_) = options.sites {
        let chosen = blocks.next_if(|chosen| chosen.instruction == index)?;
        return Some((chosen.block, access));
    }
    if !options.sites.contain(instruction.ip()) {
        return None;
    }
    if let Sites::Instructions(_) = options.sites {
        return Some((instruction.ip(), access));
    }
    let access = access.filter(|access| options.accesses.contain(access.direction))?;
    Some((instruction.ip(), Some(access)))
}

/// True if the yield was selected for its access but nothing can be prefetched for it: such a yield is
/// useless.
fn lacks_operand(
    options: &Options,
    body: Body,
    instruction: &Instruction,
    access: Option<&Access>,
) -> bool {
    let prefetches = matches!(body, Body::Yield(what) if what.prefetches());
    prefetches
        && matches!(options.sites, Sites::All | Sites::At(_))
        && access.is_none_or(|access| Operand::of(instruction, access).is_none())
}

/// True for a call, which is not moved: its body is executed after the instructions before it.
fn is_call(options: &Options, instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::IndirectCall => true,
        FlowControl::Call => {
            matches!(options.sites, Sites::Instructions(_)) && instruction.is_call_near()
        }
        _ => false,
    }
}

fn site_at(sites: &mut [Site], index: usize) -> Option<&mut Site> {
    let at = sites
        .binary_search_by_key(&index, |site| site.instruction)
        .ok()?;
    Some(&mut sites[at])
}

fn refuse(found: &mut PlannedFunction, index: usize, refusal: Refusal) {
    if let Some(site) = site_at(&mut found.sites, index) {
        site.number = Err(refusal);
    }
    for hook in &mut found.hooks {
        if hook.instruction == index {
            hook.state = HookState::Refused(refusal);
        }
    }
    for wrap in &mut found.wraps {
        if wrap.instruction == index {
            wrap.view.state = HookState::Refused(refusal);
        }
    }
}
