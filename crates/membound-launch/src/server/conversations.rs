//! Serves conversations, one thread for each: dispatches the agents' events.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use membound_wire::Event;

use super::Server;
use super::leaving::{DISPATCHED, FILTERED, UNTIMED};
use crate::area::NotInstalled;
use crate::background;
use crate::channel::{Channel, Listener};
use crate::conversation::Conversation;
use crate::exchange::Left;
use crate::process_key::ProcessKey;
use crate::settling::{self, Refused};
use crate::slice;

/// Pause before a refused change is tried again, so that threads that could not be stopped can move on.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// The same where patches that are no longer chosen stayed in the text each time: for as long as the program runs.
const TAKEN_OUT_AGAIN_AFTER: Duration = Duration::from_millis(250);

impl Server {
    /// Accepts conversations until the listener is closed.
    pub(crate) fn run(self: &Arc<Self>, listener: &Listener) {
        while let Ok(channel) = listener.accept() {
            let server = Arc::clone(self);
            let thread = std::thread::Builder::new().name("conversation".to_owned());
            // Without a thread the channel is dropped, and the program runs on as it is.
            let spawned = thread.spawn(move || {
                slice::shorten();
                server.serve(channel);
            });
            if let Err(error) = spawned {
                let missed = format!("a program: nobody could serve it ({error})");
                self.ledger().missed.insert(missed);
            }
        }
    }

    fn serve(&self, channel: Channel) {
        let begun = Instant::now();
        // A client with another protocol is not an agent of this launcher.
        let Ok(Some(conversation)) =
            Conversation::begin(channel, Arc::clone(&self.spaces), Arc::clone(&self.stops))
        else {
            return;
        };
        let pid = conversation.pid;
        self.doorbells.note_number(pid, conversation.hello.pid);
        let Some(event) = Event::from_number(conversation.hello.event) else {
            return conversation.go();
        };
        if event == Event::Doorbell {
            self.plan_ahead(&conversation);
        }
        let own = self.turn(pid);
        let mut turn = Some(own.lock().unwrap_or_else(PoisonError::into_inner));
        let key = conversation.key;
        let done = match event {
            Event::Start => self.answer_start(&conversation, key, &mut turn),
            Event::Modules => self.modules(&conversation, key),
            Event::Scavenger => self.scavenger_maps(&conversation, key),
            Event::Writable => self.writable(&conversation),
            Event::Filtered => self.leave(&conversation, key, FILTERED),
            Event::Dispatched => self.leave(&conversation, key, DISPATCHED),
            Event::Untimed => self.leave(&conversation, key, UNTIMED),
            Event::Doorbell => match self.answer_doorbell(&conversation, key, &mut turn) {
                ControlFlow::Continue(done) => done,
                ControlFlow::Break((exchange, after)) => {
                    conversation.go();
                    drop(turn);
                    return self.ask_again(pid, exchange, after);
                }
            },
        };
        if event != Event::Doorbell {
            let held_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(0);
            self.held_ns.fetch_add(held_ns, Ordering::Relaxed);
        }
        self.release(conversation, key, event, done);
        drop(turn);
        if event == Event::Start && self.owes_tables(pid) {
            std::thread::sleep(background::BEGINS_AFTER);
            if settling::runs(key) {
                self.doorbells.ring_for(pid);
            }
        }
    }

    /// The lock of a process, which one conversation holds at a time.
    fn turn(&self, pid: u32) -> Arc<Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|other, turn| *other == pid || Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(pid).or_default())
    }

    /// Answers a new process image. While scavengers start, which converse too, `turn` is released.
    fn answer_start(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        turn: &mut Option<MutexGuard<'_, ()>>,
    ) -> Result<(), NotInstalled> {
        let done = self.start(conversation, key);
        if let Some(ticks) = &self.ticks
            && let Some(reason) = self.ledger().unpatched(key)
        {
            ticks.refuse(key.pid, reason);
        }
        if let Some(harvesting) = &self.harvesting
            && harvesting.is_in(key)
        {
            drop(turn.take());
            harvesting.await_scavengers();
        }
        done
    }

    /// Answers a control thread that was woken. Once all changes are made, `turn` is released. Breaks if the thread is to
    /// be woken once more, with the number of the exchange and a pause: a change was refused for the first time, or
    /// patches stayed that are no longer chosen.
    fn answer_doorbell(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        turn: &mut Option<MutexGuard<'_, ()>>,
    ) -> ControlFlow<(u64, Duration), Result<(), NotInstalled>> {
        let exchanged = self.settling.number();
        let refused = self.settling.if_refused(key, exchanged);
        let done = self.doorbell(conversation, key, refused);
        match &done {
            Err(error) if error.is_passing() && refused == Refused::Again => {
                self.settling.refuse(key, exchanged);
                return ControlFlow::Break((exchanged, AGAIN_AFTER));
            }
            // Its control thread ends with this conversation, so later requests to it would never be done.
            Err(error) if error.is_gone() => {
                self.settling.forget(key);
                self.texts().forget(key);
            }
            _ => self.settling.done(key, exchanged),
        }
        if done.is_ok() {
            // Other threads of the program may start conversations meanwhile.
            drop(turn.take());
            self.try_hold(conversation, key);
        }
        match done {
            Ok(Left::Some) => ControlFlow::Break((exchanged, TAKEN_OUT_AGAIN_AFTER)),
            done => ControlFlow::Continue(done.map(drop)),
        }
    }

    /// Lets the program go on.
    fn release(
        &self,
        conversation: Conversation,
        key: ProcessKey,
        event: Event,
        done: Result<(), NotInstalled>,
    ) {
        match done {
            Ok(()) => conversation.go(),
            // The program has ended and need not be released.
            Err(error) if error.is_gone() => {}
            Err(error) => {
                self.miss(key.pid, &error);
                if event == Event::Start {
                    self.ledger().settle(key, Some(error.to_string()));
                }
                conversation.go();
            }
        }
    }

    /// True if a process is to get more unwind tables.
    fn owes_tables(&self, pid: u32) -> bool {
        let unwinding = self.unwinding.as_ref();
        unwinding.is_some_and(|unwinding| unwinding.owes(pid))
    }

    /// Wakes a program once more for refused changes `after` a pause, unless a newer exchange was requested meanwhile.
    fn ask_again(&self, pid: u32, exchange: u64, after: Duration) {
        std::thread::sleep(after);
        if self.settling.number() == exchange {
            self.doorbells.ring_for(pid);
        }
    }
}
