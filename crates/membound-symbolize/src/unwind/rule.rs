//! Call frame information for one address, in a form that is quick to apply.

use gimli::{CfaRule, Encoding, EvaluationResult, Expression, RegisterRule, Value};

use super::frames::Frames;
use super::state::{Memory, State};
use super::stop::Stop;
use crate::cfi::{Kind, Row, Signal, Slice};
use crate::machine::{Machine, SIGNED_RETURN};

/// Steps of evaluating an expression, more than those of any that compilers write. Expressions can loop.
const MAX_STEPS: u32 = 1000;

/// Length of [`Machine::callee_saved`], at most.
const MAX_CALLEE_SAVED: usize = 11;

/// How to compute a caller's registers.
#[derive(Clone, Debug)]
pub(super) enum Rule {
    /// The frame is at an offset from a register, and saved registers are at offsets from the frame.
    Plain(Plain),
    /// Any other rule.
    Odd(Box<Odd>),
    /// There is no caller: the thread's first function.
    Outermost,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Plain {
    base: u8,
    cfa: i32,
    /// Offset of the return address; `None`: it is still in the link register.
    return_address: Option<i32>,
    /// Offsets for [`Machine::callee_saved`]; `None` if the function has not changed the register.
    saved: [Option<i32>; MAX_CALLEE_SAVED],
    signal: Signal,
}

#[derive(Clone, Debug)]
pub(super) struct Odd {
    frames: Frames,
    section: Kind,
    encoding: Encoding,
    cfa: CfaRule<usize>,
    registers: Vec<(u16, RegisterRule<usize>)>,
    signal: Signal,
}

impl Rule {
    pub(super) fn of(row: Row, frames: &Frames) -> Self {
        let rule = |number| {
            row.registers
                .iter()
                .find_map(|(register, rule)| (*register == number).then_some(rule))
        };
        let machine = frames.machine();
        match rule(machine.return_address()) {
            Some(RegisterRule::Undefined) => return Self::Outermost,
            // With a link register, the return address may still be in it.
            None if machine.link_register().is_none() => return Self::Outermost,
            _ => {}
        }
        match Plain::of(&row, machine) {
            Some(plain) => Self::Plain(plain),
            None => Self::Odd(Box::new(Odd {
                frames: frames.clone(),
                section: row.section,
                encoding: row.encoding,
                cfa: row.cfa,
                registers: row.registers,
                signal: row.signal,
            })),
        }
    }

    /// The state of the caller, and whether this frame is a signal frame.
    pub(super) fn apply(
        &self,
        state: &State,
        read: &mut Memory<'_>,
    ) -> Result<(State, Signal), Stop> {
        match self {
            Self::Plain(plain) => plain.apply(state, read),
            Self::Odd(odd) => odd.apply(state, read),
            Self::Outermost => Err(Stop::Outermost),
        }
    }
}

impl Plain {
    fn of(row: &Row, machine: Machine) -> Option<Self> {
        let CfaRule::RegisterAndOffset { register, offset } = &row.cfa else {
            return None;
        };
        let mut plain = Self {
            base: machine.hardware(register.0)?,
            cfa: i32::try_from(*offset).ok()?,
            return_address: None,
            saved: [None; MAX_CALLEE_SAVED],
            signal: row.signal,
        };
        for (register, rule) in &row.registers {
            if machine == Machine::Aarch64 && *register == SIGNED_RETURN {
                continue;
            }
            let offset = match rule {
                RegisterRule::Offset(offset) => i32::try_from(*offset).ok()?,
                RegisterRule::SameValue => continue,
                _ => return None,
            };
            if *register == machine.return_address() {
                plain.return_address = Some(offset);
                continue;
            }
            let number = machine.hardware(*register)?;
            let position = machine
                .callee_saved()
                .iter()
                .position(|usual| *usual == number)?;
            plain.saved[position] = Some(offset);
        }
        (plain.return_address.is_some() || machine.link_register().is_some()).then_some(plain)
    }

    fn apply(&self, state: &State, read: &mut Memory<'_>) -> Result<(State, Signal), Stop> {
        let base = state.get(self.base).ok_or(Stop::Unknown)?;
        let cfa = base.wrapping_add_signed(i64::from(self.cfa));
        let mut at = |offset: i32| read(cfa.wrapping_add_signed(i64::from(offset)));
        let mut caller = *state;
        let return_address = match self.return_address {
            Some(offset) => at(offset).ok_or(Stop::Unread)?,
            None => linked(state).ok_or(Stop::Unknown)?,
        };
        caller.ip = state.machine.code_address(return_address);
        caller.keep_preserved();
        for (number, saved) in state.machine.callee_saved().iter().zip(self.saved) {
            if let Some(offset) = saved {
                // A register whose slot cannot be read becomes unknown; the return address is still valid.
                caller.set(*number, at(offset));
            }
        }
        caller.set_sp(cfa);
        Ok((caller, self.signal))
    }
}

/// The return address in the link register.
fn linked(state: &State) -> Option<u64> {
    state.get(state.machine.link_register()?)
}

impl Odd {
    fn apply(&self, state: &State, read: &mut Memory<'_>) -> Result<(State, Signal), Stop> {
        let cfa = match &self.cfa {
            CfaRule::RegisterAndOffset { register, offset } => state
                .dwarf(register.0)
                .ok_or(Stop::Unknown)?
                .wrapping_add_signed(*offset),
            CfaRule::Expression(expression) => self.evaluate(expression, None, state, read)?,
        };
        let mut caller = *state;
        caller.keep_preserved();
        caller.set_sp(cfa);
        let mut return_address = linked(state).ok_or(Stop::Unknown);
        for (register, rule) in &self.registers {
            let value = match rule {
                RegisterRule::Undefined => Err(Stop::Unknown),
                RegisterRule::SameValue => state.dwarf(*register).ok_or(Stop::Unknown),
                RegisterRule::Offset(offset) => {
                    read(cfa.wrapping_add_signed(*offset)).ok_or(Stop::Unread)
                }
                RegisterRule::ValOffset(offset) => Ok(cfa.wrapping_add_signed(*offset)),
                RegisterRule::Register(from) => state.dwarf(from.0).ok_or(Stop::Unknown),
                RegisterRule::Expression(expression) => self
                    .evaluate(expression, Some(cfa), state, read)
                    .and_then(|address| read(address).ok_or(Stop::Unread)),
                RegisterRule::ValExpression(expression) => {
                    self.evaluate(expression, Some(cfa), state, read)
                }
                RegisterRule::Constant(value) => Ok(*value),
                _ => Err(Stop::Unknown),
            };
            if *register == state.machine.return_address() {
                return_address = value;
            } else if let Some(number) = state.machine.hardware(*register) {
                caller.set(number, value.ok());
            }
        }
        caller.ip = state.machine.code_address(return_address?);
        Ok((caller, self.signal))
    }

    fn evaluate(
        &self,
        expression: &gimli::UnwindExpression<usize>,
        first: Option<u64>,
        state: &State,
        read: &mut Memory<'_>,
    ) -> Result<u64, Stop> {
        let rules = self.frames.rules(self.section).ok_or(Stop::Unknown)?;
        let expression: Expression<Slice<'_>> = match self.section {
            Kind::Eh => expression.get(&rules.eh()),
            Kind::Debug => expression.get(&rules.debug()),
        }
        .map_err(|_| Stop::Unknown)?;
        let mut evaluation = expression.evaluation(self.encoding);
        evaluation.set_max_iterations(MAX_STEPS);
        if let Some(first) = first {
            evaluation.set_initial_value(first);
        }
        let mut result = evaluation.evaluate();
        loop {
            result = match result.map_err(|_| Stop::Unknown)? {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = match state.machine {
                        Machine::X86_64 if register.0 == Machine::X86_64.return_address() => {
                            Some(state.ip)
                        }
                        _ => state.dwarf(register.0),
                    };
                    evaluation.resume_with_register(Value::Generic(value.ok_or(Stop::Unknown)?))
                }
                EvaluationResult::RequiresMemory { address, size, .. } => {
                    let value = read(address).ok_or(Stop::Unread)?;
                    let bits = u32::from(size).min(8) * 8;
                    let value = value & u64::MAX.checked_shr(64 - bits).unwrap_or(0);
                    evaluation.resume_with_memory(Value::Generic(value))
                }
                _ => return Err(Stop::Unknown),
            };
        }
        match evaluation.as_result() {
            [piece] => match piece.location {
                gimli::Location::Address { address } => Ok(address),
                _ => Err(Stop::Unknown),
            },
            _ => Err(Stop::Unknown),
        }
    }
}
