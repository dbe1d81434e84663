//! What call frame information says of one address, in a form that is quick to apply.

use gimli::{CfaRule, Encoding, EvaluationResult, Expression, RegisterRule, Value};

use super::Frames;
use super::state::{Memory, PRESERVED, RSP, State, hardware};
use crate::cfi::{Kind, RETURN_ADDRESS, Row, Signal, Slice};

/// Steps of an expression's evaluation, beyond those of any that compilers write. Expressions
/// can loop.
const MOST_STEPS: u32 = 1000;

/// Registers that nearly every function's rules are about, by hardware number: rbx, rbp,
/// r12–r15.
const USUAL: [u8; 6] = [3, 5, 12, 13, 14, 15];

/// How a caller's registers are had.
#[derive(Clone, Debug)]
pub(super) enum Rule {
    /// The frame lies at a distance from a register, and saved registers at distances from it.
    Plain(Plain),
    /// Anything else.
    Odd(Box<Odd>),
    /// No caller: it is the thread's first function.
    Outermost,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Plain {
    base: u8,
    cfa: i32,
    return_address: i32,
    /// Of [`USUAL`]; the function left them as they were where there is none.
    saved: [Option<i32>; USUAL.len()],
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

/// Why there is no caller's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// There is no caller.
    Outermost,
    /// Memory could not be read.
    Unread,
    /// A register or an expression is needed that has no value.
    Unknown,
}

impl Rule {
    pub(super) fn of(row: Row, frames: &Frames) -> Self {
        let rule = |number| {
            row.registers
                .iter()
                .find_map(|(register, rule)| (*register == number).then_some(rule))
        };
        match rule(RETURN_ADDRESS) {
            None | Some(RegisterRule::Undefined) => return Self::Outermost,
            Some(_) => {}
        }
        match Plain::of(&row) {
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

    /// The caller's state, and how it came to this frame.
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
    fn of(row: &Row) -> Option<Self> {
        let CfaRule::RegisterAndOffset { register, offset } = &row.cfa else {
            return None;
        };
        let mut plain = Self {
            base: hardware(register.0)?,
            cfa: i32::try_from(*offset).ok()?,
            return_address: 0,
            saved: [None; USUAL.len()],
            signal: row.signal,
        };
        for (register, rule) in &row.registers {
            let offset = match rule {
                RegisterRule::Offset(offset) => i32::try_from(*offset).ok()?,
                RegisterRule::SameValue => continue,
                _ => return None,
            };
            if *register == RETURN_ADDRESS {
                plain.return_address = offset;
                continue;
            }
            let number = hardware(*register)?;
            let position = USUAL.iter().position(|usual| *usual == number)?;
            plain.saved[position] = Some(offset);
        }
        (plain.return_address != 0).then_some(plain)
    }

    fn apply(&self, state: &State, read: &mut Memory<'_>) -> Result<(State, Signal), Stop> {
        let base = state.get(self.base).ok_or(Stop::Unknown)?;
        let cfa = base.wrapping_add_signed(i64::from(self.cfa));
        let mut at = |offset: i32| read(cfa.wrapping_add_signed(i64::from(offset)));
        let mut caller = *state;
        caller.ip = at(self.return_address).ok_or(Stop::Unread)?;
        caller.keep(PRESERVED);
        for (number, saved) in USUAL.into_iter().zip(self.saved) {
            if let Some(offset) = saved {
                // A stack that was cut off above still has the return address.
                caller.set(number, at(offset));
            }
        }
        caller.set(RSP, Some(cfa));
        Ok((caller, self.signal))
    }
}

impl Odd {
    fn apply(&self, state: &State, read: &mut Memory<'_>) -> Result<(State, Signal), Stop> {
        let cfa = match &self.cfa {
            CfaRule::RegisterAndOffset { register, offset } => hardware(register.0)
                .and_then(|number| state.get(number))
                .ok_or(Stop::Unknown)?
                .wrapping_add_signed(*offset),
            CfaRule::Expression(expression) => self.evaluate(expression, None, state, read)?,
        };
        let mut caller = *state;
        caller.keep(PRESERVED);
        caller.set(RSP, Some(cfa));
        let mut return_address = Err(Stop::Unknown);
        for (register, rule) in &self.registers {
            let value = match rule {
                RegisterRule::Undefined => Err(Stop::Unknown),
                RegisterRule::SameValue => hardware(*register)
                    .and_then(|number| state.get(number))
                    .ok_or(Stop::Unknown),
                RegisterRule::Offset(offset) => {
                    read(cfa.wrapping_add_signed(*offset)).ok_or(Stop::Unread)
                }
                RegisterRule::ValOffset(offset) => Ok(cfa.wrapping_add_signed(*offset)),
                RegisterRule::Register(from) => hardware(from.0)
                    .and_then(|number| state.get(number))
                    .ok_or(Stop::Unknown),
                RegisterRule::Expression(expression) => self
                    .evaluate(expression, Some(cfa), state, read)
                    .and_then(|address| read(address).ok_or(Stop::Unread)),
                RegisterRule::ValExpression(expression) => {
                    self.evaluate(expression, Some(cfa), state, read)
                }
                RegisterRule::Constant(value) => Ok(*value),
                _ => Err(Stop::Unknown),
            };
            match hardware(*register) {
                Some(number) => caller.set(number, value.ok()),
                None if *register == RETURN_ADDRESS => return_address = value,
                None => {}
            }
        }
        caller.ip = return_address?;
        Ok((caller, self.signal))
    }

    fn evaluate(
        &self,
        expression: &gimli::UnwindExpression<usize>,
        first: Option<u64>,
        state: &State,
        read: &mut Memory<'_>,
    ) -> Result<u64, Stop> {
        let section = self
            .frames
            .cfi()
            .section(self.section)
            .ok_or(Stop::Unknown)?;
        let expression: Expression<Slice<'_>> = match self.section {
            Kind::Eh => expression.get(&section.eh()),
            Kind::Debug => expression.get(&section.debug()),
        }
        .map_err(|_| Stop::Unknown)?;
        let mut evaluation = expression.evaluation(self.encoding);
        evaluation.set_max_iterations(MOST_STEPS);
        if let Some(first) = first {
            evaluation.set_initial_value(first);
        }
        let mut result = evaluation.evaluate();
        loop {
            result = match result.map_err(|_| Stop::Unknown)? {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = match register.0 {
                        RETURN_ADDRESS => Some(state.ip),
                        number => hardware(number).and_then(|number| state.get(number)),
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
