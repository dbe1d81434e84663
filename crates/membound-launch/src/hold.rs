//! Trials in which threads of a program are held for less than a millisecond, while another one shows how
//! much faster it makes progress (see `agent/hold.rs`).
//!
//! There is one trial at a time. The program's control thread makes it when the doorbell rings.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use membound_wire::{
    HOLD_BYTES, HOLD_NONE, HOLD_SPANS, HOLD_THREADS, HOLD_WORDS, Progress, Span, Trial,
};

use crate::conversation::{Conversation, Failure};
use crate::maps;
use crate::memory::Shared;
use crate::process_key::ProcessKey;
use crate::server::Server;
use crate::trials::{Held, HeldSpan, Holding};

/// Most processes whose memory for trials is kept.
const MAX_PROCESSES: usize = 64;

impl Server {
    /// Requests a trial in a process.
    pub(crate) fn hold(&self, holding: Holding) {
        let pid = holding.pid;
        {
            let mut state = self.trials.state();
            state.wanted = Some(holding);
            state.done = None;
        }
        self.doorbells.ring_for(pid);
    }

    /// Makes the trial that is requested for the process of this conversation, if there is one.
    pub(crate) fn try_hold(&self, conversation: &Conversation, key: ProcessKey) {
        let is_meant = |it: &mut Holding| it.pid == key.pid;
        let Some(holding) = self.trials.state().wanted.take_if(is_meant) else {
            return;
        };
        let done = self
            .make_trial(conversation, key, &holding)
            .unwrap_or_else(Held::Refused);
        self.trials.state().done = Some(done);
    }

    fn make_trial(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        holding: &Holding,
    ) -> Result<Held, String> {
        if conversation.hello.pid != conversation.pid {
            return Err("the program has other numbers for its threads".to_owned());
        }
        let known = self.trials.state().memory.remove(&key);
        let (memory, at) = match known {
            Some(known) => known,
            None => {
                let mut maps = maps::of(key.pid).map_err(|error| error.to_string())?;
                let failed = |failure: Failure| failure.to_string();
                let memory = Shared::zeroed("membound-trial", HOLD_BYTES)
                    .map_err(|error| error.to_string())?;
                let at = memory.hang(conversation, &mut maps).map_err(failed)?;
                (memory, at)
            }
        };
        write(&memory, holding).map_err(|error| error.to_string())?;
        let measured = conversation.hold(at);
        let held = measured
            .map(|count| read(&memory, holding, count))
            .map_err(|failure| failure.to_string());
        let mut state = self.trials.state();
        if state.memory.len() >= MAX_PROCESSES {
            state.memory.clear();
        }
        state.memory.insert(key, (memory, at));
        held
    }
}

fn write(memory: &Shared, holding: &Holding) -> std::io::Result<()> {
    let threads = holding.tids.len().min(HOLD_THREADS);
    let spans = holding.spans.min(HOLD_SPANS as u32);
    let mut bytes = Vec::new();
    for word in [threads as u32, spans, holding.span_ns, holding.seed] {
        bytes.extend(word.to_ne_bytes());
    }
    let tids = holding.tids.iter().copied();
    for tid in tids.chain(std::iter::repeat(0)).take(HOLD_THREADS) {
        bytes.extend(tid.to_ne_bytes());
    }
    bytes.extend(holding.line.to_ne_bytes());
    memory.write(0, &bytes)
}

fn read(memory: &Shared, holding: &Holding, count: u64) -> Held {
    let word = |offset: usize| memory.word64(offset).load(Ordering::Acquire);
    let mut spans = Vec::new();
    for number in 0..(count as usize).min(HOLD_SPANS) {
        let at = size_of::<Trial>() + number * size_of::<Span>();
        let runs = memory.word32(at + offset_of!(Span, runs));
        let runs = runs.load(Ordering::Acquire);
        for thread in 0..holding.tids.len().min(HOLD_THREADS) {
            let alone = runs != HOLD_NONE;
            if alone && runs as usize != thread {
                continue;
            }
            let of_thread = at + offset_of!(Span, threads) + thread * size_of::<Progress>();
            let words = of_thread + offset_of!(Progress, words);
            spans.push(HeldSpan {
                tsc: word(at + offset_of!(Span, tsc)),
                thread,
                alone,
                wall_ns: word(of_thread + offset_of!(Progress, wall_ns)),
                cpu_ns: word(of_thread + offset_of!(Progress, cpu_ns)),
                words: (0..HOLD_WORDS).map(|it| word(words + 8 * it)).collect(),
            });
        }
    }
    let given_up = memory.word32(offset_of!(Trial, given_up));
    Held::Measured(spans, given_up.load(Ordering::Acquire))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_span_those_are_told_that_ran_in_it() {
        let holding = Holding {
            pid: 1,
            tids: vec![5, 6],
            line: 0x1000,
            spans: 9,
            span_ns: 600_000,
            seed: 3,
        };
        let memory = Shared::zeroed("membound-test", HOLD_BYTES).unwrap();
        write(&memory, &holding).unwrap();
        assert_eq!(memory.word32(0).load(Ordering::Relaxed), 2);
        let tid = offset_of!(Trial, tids) + 4;
        assert_eq!(memory.word32(tid).load(Ordering::Relaxed), 6);
        let line = offset_of!(Trial, line);
        assert_eq!(memory.word64(line).load(Ordering::Relaxed), 0x1000);
        let given_up = memory.word32(offset_of!(Trial, given_up));
        given_up.store(1, Ordering::Relaxed);
        for (number, runs) in [HOLD_NONE, 1].into_iter().enumerate() {
            let at = size_of::<Trial>() + number * size_of::<Span>();
            let word = memory.word32(at + offset_of!(Span, runs));
            word.store(runs, Ordering::Relaxed);
            let second = at + offset_of!(Span, threads) + size_of::<Progress>();
            let cpu_ns = memory.word64(second + offset_of!(Progress, cpu_ns));
            cpu_ns.store(50, Ordering::Relaxed);
        }
        let Held::Measured(spans, given_up) = read(&memory, &holding, 2) else {
            panic!("it was measured");
        };
        assert_eq!(given_up, 1);
        let seen = spans.iter().map(|it| (it.thread, it.alone, it.cpu_ns));
        let expected = [(0, false, 0), (1, false, 50), (1, true, 50)];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }
}
