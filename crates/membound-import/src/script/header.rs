//! Parses lines of `perf script`: the fields before a sample's call chain, and frames.

use crate::{MemoryAccess, data_src};

/// A frame as it was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptFrame<'a> {
    /// Address of the instruction or of the call.
    pub address: u64,
    /// Name of the function; `None` if perf did not know it.
    pub function: Option<&'a str>,
    /// Offset from the beginning of the function in bytes, if it was printed.
    pub offset: Option<u64>,
    /// Name of the file; `None` if perf did not know it.
    pub file: Option<&'a str>,
    /// True if the function is inlined into that of the next frame.
    pub is_inlined: bool,
}

impl ScriptFrame<'_> {
    /// True if the frame is in the kernel.
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        /// Lowest address of the kernel on 64-bit machines.
        const FIRST: u64 = 1 << 63;
        let is_module = |file: &str| file.starts_with('[') && !file.starts_with("[vdso");
        self.address >= FIRST
            || self
                .file
                .is_some_and(|file| is_module(file) && file != "[heap]" && file != "[stack]")
    }
}

/// Nanoseconds per second.
const SECOND: u64 = 1_000_000_000;

/// The fields up to the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header<'a> {
    pub(super) name: &'a str,
    pub(super) pid: Option<i32>,
    pub(super) tid: i32,
    pub(super) cpu: Option<u32>,
    pub(super) t_ns: u64,
    pub(super) period: Option<u64>,
    pub(super) event: &'a str,
    /// The text after the event.
    pub(super) rest: &'a str,
}

/// Splits off the first word.
fn word<'a>(text: &mut &'a str) -> Option<&'a str> {
    let trimmed = text.trim_start();
    let end = trimmed.find(char::is_whitespace).unwrap_or(trimmed.len());
    let (word, rest) = trimmed.split_at(end);
    *text = rest;
    (!word.is_empty()).then_some(word)
}

/// Splits off the last word.
fn last_word<'a>(text: &mut &'a str) -> Option<&'a str> {
    let trimmed = text.trim_end();
    let start = trimmed.rfind(char::is_whitespace).map_or(0, |at| {
        at + trimmed[at..].chars().next().map_or(1, char::len_utf8)
    });
    let (rest, word) = trimmed.split_at(start);
    *text = rest;
    (!word.is_empty()).then_some(word)
}

impl<'a> Header<'a> {
    pub(super) fn read(line: &'a str) -> Result<Self, &'static str> {
        let (t_ns, before, mut behind) = split_at_time(line)?;
        let mut before = before;
        let mut last = last_word(&mut before).ok_or("has no thread before its time")?;
        let mut cpu = None;
        if let Some(number) = last.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            cpu = Some(number.parse().map_err(|_| "has a CPU that is no number")?);
            last = last_word(&mut before).ok_or("has no thread before its CPU")?;
        }
        let (pid, tid) = match last.split_once('/') {
            Some((pid, tid)) => (Some(number(pid)?), number(tid)?),
            None => (None, number(last)?),
        };
        let mut period = None;
        let mut event = word(&mut behind).ok_or("has no event behind its time")?;
        if event.bytes().all(|byte| byte.is_ascii_digit()) {
            period = Some(
                event
                    .parse()
                    .map_err(|_| "has a period that is too large")?,
            );
            event = word(&mut behind).ok_or("has no event behind its period")?;
        }
        let event = event
            .strip_suffix(':')
            .ok_or("has no event behind its time")?;
        Ok(Self {
            name: before.trim(),
            pid,
            tid,
            cpu,
            t_ns,
            period,
            event,
            rest: behind,
        })
    }
}

fn number(text: &str) -> Result<i32, &'static str> {
    text.parse().map_err(|_| "has no thread before its time")
}

/// The time in nanoseconds, and the text before and after it.
fn split_at_time(line: &str) -> Result<(u64, &str, &str), &'static str> {
    let mut rest = line;
    while let Some(found) = word(&mut rest) {
        let Some((seconds, fraction)) = found
            .strip_suffix(':')
            .and_then(|time| time.split_once('.'))
        else {
            continue;
        };
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        if !is_number(seconds) || !is_number(fraction) || fraction.len() > 9 {
            continue;
        }
        let before = &line[..line.len() - rest.len() - found.len()];
        let scale = 10_u64.pow(9 - fraction.len() as u32);
        let t_ns = seconds
            .parse::<u64>()
            .ok()
            .and_then(|seconds| seconds.checked_mul(SECOND))
            .zip(fraction.parse::<u64>().ok())
            .and_then(|(seconds, fraction)| seconds.checked_add(fraction * scale));
        return Ok((t_ns.ok_or("has a time that is too large")?, before, rest));
    }
    Err("is no line of `perf script`: it has no time")
}

/// The data after the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordTail<'a> {
    pub(super) access: Option<MemoryAccess>,
    pub(super) frame: Option<ScriptFrame<'a>>,
}

/// Parses the text after the event: a data address, a data source and an instruction.
pub(super) fn rest(text: &str) -> Result<RecordTail<'_>, &'static str> {
    /// How perf prints the beginning of a data source in words.
    const IN_WORDS: &str = "|OP ";
    let Some(at) = text.find(IN_WORDS) else {
        return Ok(plain_rest(text.trim()));
    };
    let mut before = &text[..at];
    let source = last_word(&mut before).and_then(hexadecimal);
    let source = source.ok_or("has no value of its data source")?;
    let mut access = data_src::decode(source);
    access.address = last_word(&mut before)
        .and_then(hexadecimal)
        .filter(|address| *address != 0);
    let mut behind = &text[at..];
    let mut frame = None;
    // The words end at a weight or an instruction.
    let mut look = behind;
    while let Some(found) = word(&mut look) {
        let is_decimal = found.bytes().all(|byte| byte.is_ascii_digit());
        // No word of a data source ("L1 or L2", "N/A") is a number.
        if is_decimal && access.latency_cycles.is_none() {
            access.latency_cycles = found.parse().ok().filter(|cycles| *cycles > 0);
            behind = look;
            frame = self::frame(behind.trim());
            break;
        }
        if hexadecimal(found).is_some() && found.len() >= 4 {
            let from = behind.len() - look.len() - found.len();
            frame = self::frame(behind[from..].trim());
            break;
        }
    }
    Ok(RecordTail {
        access: Some(access),
        frame,
    })
}

/// Parses an instruction that may have a data address before it.
fn plain_rest(text: &str) -> RecordTail<'_> {
    let mut behind = text;
    let first = word(&mut behind).and_then(hexadecimal);
    let mut look = behind;
    let second = word(&mut look);
    let follows = look.trim_start();
    let has_address = second.and_then(hexadecimal).is_some() && !follows.is_empty();
    let has_address = has_address && !follows.starts_with('(');
    RecordTail {
        access: None,
        frame: match (first, has_address) {
            (Some(_), true) => frame(behind.trim()),
            (Some(_), false) => frame(text),
            (None, _) => None,
        },
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    let text = text.strip_prefix("0x").unwrap_or(text);
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(text, 16).ok())?
}

/// Parses a frame: `address function+offset (file)`. What perf did not know is `[unknown]` or missing.
pub(super) fn frame(text: &str) -> Option<ScriptFrame<'_>> {
    const UNKNOWN: &str = "[unknown]";
    let mut rest = text;
    let address = word(&mut rest).and_then(hexadecimal)?;
    let mut rest = rest.trim();
    let mut file = None;
    let mut is_inlined = false;
    if let Some(without) = rest.strip_suffix(')') {
        // Paths may contain brackets, and function names blanks before theirs.
        let at = without.rfind(" (").map(|at| (at, at + 2));
        let at = at.or_else(|| without.starts_with('(').then_some((0, 1)));
        if let Some((name_end, file_start)) = at {
            let found = &without[file_start..];
            is_inlined = found == "inlined";
            file = (found != UNKNOWN && !is_inlined).then_some(found);
            rest = rest[..name_end].trim();
        }
    }
    let (name, offset) = match rest.rsplit_once("+0x") {
        Some((name, offset)) => match u64::from_str_radix(offset, 16) {
            Ok(offset) => (name, Some(offset)),
            Err(_) => (rest, None),
        },
        None => (rest, None),
    };
    Some(ScriptFrame {
        address,
        function: (!name.is_empty() && name != UNKNOWN).then_some(name),
        offset,
        file,
        is_inlined,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_threads_may_have_blanks_and_dots() {
        let header = Header::read("a 1.5 b 7/8 [003] 12.000000: 4 e:u: rest").unwrap();
        assert_eq!(
            (header.name, header.pid, header.tid),
            ("a 1.5 b", Some(7), 8)
        );
        assert_eq!((header.cpu, header.t_ns), (Some(3), 12 * SECOND));
        assert_eq!((header.period, header.event), (Some(4), "e:u"));
        assert_eq!(header.rest.trim(), "rest");
        let header = Header::read(":-1 -1 12.5: e:").unwrap();
        assert_eq!((header.name, header.tid), (":-1", -1));
    }

    #[test]
    fn an_address_of_data_may_stand_before_the_instruction() {
        let found = plain_rest("7ffc0010 401000 main+0x4 (/bin/x)")
            .frame
            .unwrap();
        assert_eq!((found.address, found.function), (0x40_1000, Some("main")));
        let found = plain_rest("401000 add (/bin/x)").frame.unwrap();
        assert_eq!((found.address, found.function), (0x40_1000, Some("add")));
        let found = plain_rest("401000 [unknown] ([unknown])").frame.unwrap();
        assert_eq!((found.function, found.file), (None, None));
        assert_eq!(plain_rest("").frame, None);
        assert_eq!(frame("401000 (/bin/x)").unwrap().file, Some("/bin/x"));
    }

    #[test]
    fn malformed_lines_are_refused() {
        for line in [
            "",
            "12.5:",
            "x 12.5: 1",
            "x 12.5: e",
            "x y 12.5: e:",
            "x 1 [z] 1.5: e:",
        ] {
            assert!(Header::read(line).is_err(), "{line}");
        }
        assert!(rest("zz |OP LOAD|").is_err());
        assert!(rest("68100142 |OP LOAD|LVL").unwrap().access.is_some());
    }
}
