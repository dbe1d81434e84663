//! Serves conversations, one thread for each: dispatches the agents' events.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use membound_platform::stat;
use membound_wire::Event;

use super::Server;
use super::leaving::forbidden;
use crate::channel::{Channel, Listener};
use crate::conversation::Conversation;
use crate::ledger::ProcessKey;
use crate::settling::{self, Refused};
use crate::slice;

/// Pause before a refused change is tried again, so that threads that could not be stopped can move on.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Run time after which a program gets the unwind tables of large files, for which it was not held. Many
/// programs end before.
const TABLES_AFTER: Duration = Duration::from_millis(50);

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
        let event = conversation.hello.event;
        if event == Event::Doorbell as u32 {
            self.plan_ahead(&conversation);
        }
        let own = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|other, turn| *other == pid || Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(pid).or_default())
        };
        let mut turn = Some(own.lock().unwrap_or_else(PoisonError::into_inner));
        let Ok(started) = stat::started(pid) else {
            return;
        };
        let key = ProcessKey { pid, started };
        let hold = || {
            if event != Event::Doorbell as u32 {
                let held_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(0);
                self.held_ns.fetch_add(held_ns, Ordering::Relaxed);
            }
        };
        let done = if event == Event::Start as u32 {
            self.start(&conversation, key)
        } else if event == Event::Modules as u32 {
            self.modules(&conversation, key)
        } else if event == Event::Scavenger as u32 {
            self.scavenger_maps(&conversation, key)
        } else if event == Event::Writable as u32 {
            self.writable(&conversation)
        } else if let Some(forbidden) = forbidden(event) {
            self.leave(&conversation, key, forbidden)
        } else if event == Event::Doorbell as u32 {
            let exchanged = self.settling.number();
            let refused = self.settling.if_refused(key, exchanged);
            match self.doorbell(&conversation, key, refused) {
                Err(error) if error.is_passing() && refused == Refused::Again => {
                    self.settling.refuse(key, exchanged);
                    conversation.go();
                    drop(turn.take());
                    self.ask_again(pid, exchanged);
                    return;
                }
                done => {
                    match &done {
                        // Its control thread ends with this conversation, so later requests to it would
                        // never be done.
                        Err(error) if error.is_gone() => {
                            self.settling.forget(key);
                            self.texts().forget(key);
                        }
                        _ => self.settling.done(key, exchanged),
                    }
                    done
                }
            }
        } else {
            Ok(())
        };
        if event == Event::Start as u32
            && let Some(ticks) = &self.ticks
            && let Some(reason) = self.ledger().unpatched(key)
        {
            ticks.refuse(pid, reason);
        }
        if event == Event::Start as u32
            && let Some(harvesting) = &self.harvesting
            && harvesting.is_in(key)
        {
            // Scavengers converse too, while the program waits for them.
            drop(turn.take());
            harvesting.await_scavengers();
        }
        if event == Event::Doorbell as u32 && done.is_ok() {
            // Other threads of the program may start conversations meanwhile.
            drop(turn.take());
            self.try_hold(&conversation, key);
        }
        hold();
        match done {
            Ok(()) => conversation.go(),
            // The program has ended and need not be released.
            Err(error) if error.is_gone() => {}
            Err(error) => {
                self.miss(pid, &error);
                if event == Event::Start as u32 {
                    self.ledger().settle(key, Some(error.to_string()));
                }
                conversation.go();
            }
        }
        drop(turn.take());
        if event == Event::Start as u32 && self.owes_tables(pid) {
            std::thread::sleep(TABLES_AFTER);
            if settling::runs(key) {
                self.doorbells.ring_for(pid);
            }
        }
    }

    /// True if a process is to get more unwind tables.
    fn owes_tables(&self, pid: u32) -> bool {
        let unwinding = self.unwinding.as_ref();
        unwinding.is_some_and(|unwinding| unwinding.owes(pid))
    }

    /// Wakes a program once more for refused changes, unless a newer exchange was requested meanwhile.
    fn ask_again(&self, pid: u32, exchange: u64) {
        std::thread::sleep(AGAIN_AFTER);
        if self.settling.number() == exchange {
            self.doorbells.ring_for(pid);
        }
    }
}
