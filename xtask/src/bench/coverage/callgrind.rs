//! Reads the output of valgrind's callgrind: how often each instruction was executed, and the jumps
//! and calls.
//!
//! The file must have been written with `--dump-instr=yes`; the targets of jumps are in it with
//! `--collect-jumps=yes`. Addresses are those of the object's file. The format is described in
//! callgrind's manual; three things matter here: names are given once and then by number, positions
//! are relative to the last line with costs of its own, and the line after `calls=` or `jump=`
//! gives a position with costs that belong to another function.

use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;

use anyhow::{Context as _, Result, bail, ensure};

/// Executed instructions and jumps of one object file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Object {
    /// Executions by the instruction's address.
    pub(super) executed: BTreeMap<u64, u64>,
    /// How often control went from one instruction to another inside a function, other than by a
    /// call or a return: source, then target.
    pub(super) jumps: BTreeMap<(u64, u64), u64>,
    /// How often a function was entered at an address: by a call, a jump from another function, a
    /// signal, or an exception on its way to a landing pad.
    pub(super) entries: BTreeMap<u64, u64>,
}

/// Objects by their path. What callgrind could not attribute is under `???`.
pub(super) type Trace = BTreeMap<String, Object>;

/// Adds the counts of `reader` to `trace`, so that several runs can be summed.
pub(super) fn read(reader: impl BufRead, trace: &mut Trace) -> Result<()> {
    let mut parser = Parser::default();
    for (number, line) in reader.lines().enumerate() {
        let line = line.context("cannot read callgrind's file")?;
        parser
            .line(line.trim_end())
            .with_context(|| format!("callgrind's file, line {}: {line}", number + 1))?;
    }
    ensure!(
        parser.positions && parser.cost.is_some(),
        "callgrind's file has no instruction addresses (it needs --dump-instr=yes)"
    );
    for (name, object) in parser.names.into_iter().zip(parser.objects) {
        let into = trace.entry(name).or_default();
        merge(&mut into.executed, object.executed);
        merge(&mut into.jumps, object.jumps);
        merge(&mut into.entries, object.entries);
    }
    Ok(())
}

fn merge<K: Ord>(into: &mut BTreeMap<K, u64>, from: HashMap<K, u64>) {
    for (key, count) in from {
        *into.entry(key).or_default() += count;
    }
}

#[derive(Default)]
struct Counts {
    executed: HashMap<u64, u64>,
    jumps: HashMap<(u64, u64), u64>,
    entries: HashMap<u64, u64>,
}

/// What the line after `calls=` or a jump describes.
enum Pending {
    Call,
    Jump { count: u64, target: u64 },
}

#[derive(Default)]
struct Parser {
    /// Objects by index, in the order of their first mention.
    names: Vec<String>,
    objects: Vec<Counts>,
    /// Callgrind's numbers of names, as indices.
    numbers: HashMap<u64, usize>,
    current: Option<usize>,
    /// The called object, when it is not the current one.
    called: Option<usize>,
    /// Address of the last line with costs of its own.
    last: u64,
    pending: Option<Pending>,
    /// Whether positions begin with an instruction's address.
    positions: bool,
    /// Columns of a line before the number of executions.
    before_cost: usize,
    /// Index of the number of executions among the costs.
    cost: Option<usize>,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<()> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            return self.costs(line);
        }
        if let Some((key, value)) = line.split_once('=')
            && !key.contains(':')
        {
            return self.specification(key, value);
        }
        let (key, value) = line
            .split_once(':')
            .context("neither costs nor a key with its value")?;
        self.header(key, value);
        Ok(())
    }

    fn header(&mut self, key: &str, value: &str) {
        match key {
            "positions" => {
                self.positions = value.split_whitespace().next() == Some("instr");
                self.before_cost = value.split_whitespace().count();
            }
            "events" => self.cost = value.split_whitespace().position(|event| event == "Ir"),
            // A new part, followed by costs; positions start again.
            "part" => self.last = 0,
            _ => {}
        }
    }

    fn specification(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "ob" => {
                self.current = Some(self.object(value)?);
                self.called = None;
            }
            "cob" => self.called = Some(self.object(value)?),
            "calls" => {
                let mut words = value.split_whitespace();
                let count = number(words.next().context("no number of calls")?)?;
                let target = self.position(words.next().context("no target")?)?;
                let object = self.called.take().or(self.current);
                let object = object.context("a call before any object")?;
                *self.objects[object].entries.entry(target).or_default() += count;
                self.pending = Some(Pending::Call);
            }
            "jump" | "jcnd" => {
                let mut words = value.split_whitespace();
                let counts = words.next().context("no number of jumps")?;
                let followed = counts.split_once('/').map_or(counts, |(first, _)| first);
                let count = number(followed)?;
                let target = self.position(words.next().context("no target")?)?;
                self.pending = Some(Pending::Jump { count, target });
            }
            // Source files and names of functions are ignored: the image has its own functions.
            "fl" | "fi" | "fe" | "fn" | "cfl" | "cfi" | "cfn" | "jfi" | "jfn" => {}
            // Names of events and other headers that contain `=`.
            _ if key.contains(|letter: char| !letter.is_ascii_alphabetic()) => {}
            _ => bail!("an unknown key"),
        }
        Ok(())
    }

    fn costs(&mut self, line: &str) -> Result<()> {
        ensure!(self.positions, "costs without an instruction's address");
        let mut words = line.split_whitespace();
        let address = self.position(words.next().unwrap_or_default())?;
        let object = self.current.context("costs before any object")?;
        match self.pending.take() {
            // The costs are the callee's.
            Some(Pending::Call) => {}
            Some(Pending::Jump { count, target }) => {
                let jumps = &mut self.objects[object].jumps;
                *jumps.entry((address, target)).or_default() += count;
            }
            None => {
                // Costs at the end of a line that are 0 may be left out.
                let column = self.before_cost - 1 + self.cost.context("no count of executions")?;
                let count = words.nth(column).map_or(Ok(0), number)?;
                *self.objects[object].executed.entry(address).or_default() += count;
                self.last = address;
            }
        }
        Ok(())
    }

    /// Parses an address, absolute or relative to the last.
    fn position(&self, word: &str) -> Result<u64> {
        let moved = match word.as_bytes().first() {
            Some(b'*') => Some(self.last),
            Some(b'+') => self.last.checked_add(number(&word[1..])?),
            Some(b'-') => self.last.checked_sub(number(&word[1..])?),
            _ => Some(number(word)?),
        };
        moved.with_context(|| format!("`{word}` leaves the address space"))
    }

    /// The object named by `(7) name` or `(7)`.
    fn object(&mut self, value: &str) -> Result<usize> {
        let (key, name) = match value.strip_prefix('(') {
            Some(rest) => {
                let (key, name) = rest.split_once(')').context("a number without its end")?;
                (Some(number(key)?), name.trim())
            }
            None => (None, value.trim()),
        };
        if name.is_empty() {
            return key
                .and_then(|key| self.numbers.get(&key).copied())
                .context("a name that was not given before");
        }
        let index = self.names.iter().position(|known| known == name);
        let index = index.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.objects.push(Counts::default());
            self.names.len() - 1
        });
        if let Some(key) = key {
            self.numbers.insert(key, index);
        }
        Ok(index)
    }
}

/// Parses a number, decimal or with `0x`.
fn number(word: &str) -> Result<u64> {
    word.strip_prefix("0x")
        .map_or_else(|| word.parse(), |digits| u64::from_str_radix(digits, 16))
        .with_context(|| format!("`{word}` is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "# callgrind format\nversion: 1\ncreator: callgrind-3.19.0\npart: 1\n\
        desc: Trigger: Program termination\npositions: instr line\nevents: Ir\nsummary: 9\n\n";

    fn trace(body: &str) -> Trace {
        let mut trace = Trace::new();
        read(format!("{HEADER}{body}").as_bytes(), &mut trace).unwrap();
        trace
    }

    fn counts(found: &BTreeMap<u64, u64>) -> Vec<(u64, u64)> {
        found.iter().map(|(key, count)| (*key, *count)).collect()
    }

    #[test]
    fn positions_are_relative_to_the_last_line_with_own_costs() {
        let trace = trace(
            "ob=(7) /lib/libz.so\nfl=(1) ???\nfn=(2) 0x3340\n\
             0x3340 0 1\n+7 0 5\n-3 0 2\n* 0 4\nfn=(3) other\n0x4000 12 1\n+3\n",
        );
        assert_eq!(
            counts(&trace["/lib/libz.so"].executed),
            [
                (0x3340, 1),
                (0x3344, 6),
                (0x3347, 5),
                (0x4000, 1),
                (0x4003, 0)
            ]
        );
    }

    #[test]
    fn costs_of_calls_are_not_the_callers() {
        let trace = trace(
            "ob=(1) /bin/a\nfn=(1) main\n0x1000 3 2\ncob=(2) /lib/b\ncfi=(1) b.c\ncfn=(9) f\n\
             calls=2 0x5000 7 \n* 3 888\n+5 3 2\ncfn=(4) g\ncalls=2 +32 9 \n* 3 777\n+1 3 2\n\n\
             ob=(2)\nfn=(9)\n0x5000 7 444\n",
        );
        assert_eq!(
            counts(&trace["/bin/a"].executed),
            [(0x1000, 2), (0x1005, 2), (0x1006, 2)]
        );
        assert_eq!(counts(&trace["/bin/a"].entries), [(0x1025, 2)]);
        assert_eq!(counts(&trace["/lib/b"].executed), [(0x5000, 444)]);
        assert_eq!(counts(&trace["/lib/b"].entries), [(0x5000, 2)]);
    }

    #[test]
    fn jumps_have_a_source_and_no_costs() {
        let trace = trace(
            "ob=(1) /bin/a\nfn=(1) main\n0x1000 3 20\njcnd=5/20 +23 0 \n* 0 \n+2 3 15\n\
             jfi=(4) other.c\njump=15 -16 4 \n* * \nfe=(4)\n+1 3 1\n",
        );
        let object = &trace["/bin/a"];
        assert_eq!(
            counts(&object.executed),
            [(0x1000, 20), (0x1002, 15), (0x1003, 1)]
        );
        let jumps: Vec<_> = object.jumps.iter().collect();
        assert_eq!(jumps, [(&(0x1000, 0x1017), &5), (&(0x1002, 0xff2), &15)]);
    }

    #[test]
    fn runs_add_up() {
        let mut trace = Trace::new();
        for run in [
            "ob=(1) a\n0x10 0 3\n",
            "ob=(5) b\n0x10 0 4\nob=a\n0x10 0 5\n",
        ] {
            read(format!("{HEADER}{run}").as_bytes(), &mut trace).unwrap();
        }
        assert_eq!(counts(&trace["a"].executed), [(0x10, 8)]);
        assert_eq!(counts(&trace["b"].executed), [(0x10, 4)]);
    }

    #[test]
    fn the_executions_are_found_among_other_events() {
        let text = "positions: instr\nevents: Dr Ir Dw\nob=(1) a\n0x10 7 8 9\n0x20 7\n";
        let mut trace = Trace::new();
        read(text.as_bytes(), &mut trace).unwrap();
        assert_eq!(counts(&trace["a"].executed), [(0x10, 8), (0x20, 0)]);
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        let refused = |text: &str| {
            let error = read(text.as_bytes(), &mut Trace::new()).unwrap_err();
            format!("{error:#}")
        };
        assert!(refused("").contains("--dump-instr=yes"));
        assert!(refused("positions: line\nevents: Ir\nob=(1) a\n16 2\n").contains("line 4"));
        for body in [
            "0x10 0 1\n",
            "ob=(3)\n",
            "ob=(1) a\n-1 0 1\n",
            "ob=(1) a\n0x10 0 x\n",
            "ob=(1) a\nwhat=ever\n",
            "ob=(1) a\nnonsense\n",
        ] {
            let message = refused(&format!("{HEADER}{body}"));
            assert!(message.contains("line 1"), "{message}");
        }
    }
}
