//! Progress bars on a terminal; nothing is shown elsewhere.

use std::cell::OnceCell;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use membound_coschedule::harvest_batch::{BatchDisplay, JobStream};
use membound_measure::Progress;

use crate::output::Shown;

/// A bar on stderr that advances through weighted parts; hidden unless stderr is a terminal.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// Share of the bar before the present part, and the share of the part itself.
    span: Mutex<(f64, f64)>,
}

impl Bar {
    const STEPS: u64 = 1000;

    pub(crate) fn new() -> Self {
        let target = if std::io::stderr().is_terminal() {
            // Few redraws, because each evicts some of the cache.
            ProgressDrawTarget::stderr_with_hz(5)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(Self::STEPS), target);
        let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {left:>8}  {wide_msg}");
        if let Ok(style) = style {
            bar.set_style(style.with_key("left", time_left));
        }
        Self {
            bar,
            span: Mutex::new((0.0, 1.0)),
        }
    }

    /// Begins a part at the share `from` of the bar; it takes the share `width`.
    pub(crate) fn part(&self, from: f64, width: f64) {
        if let Ok(mut span) = self.span.lock() {
            *span = (from, width);
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Writes the remaining time at the pace so far; nothing while too little is done to estimate it.
fn time_left(state: &ProgressState, text: &mut dyn Write) {
    const MIN_STEPS: u64 = 10;
    if state.pos() >= MIN_STEPS {
        // A failed write only means that no time is shown.
        let _ = write!(text, "{:.0} s left", state.eta().as_secs_f64());
    }
}

impl Progress for Bar {
    fn at(&self, share: f64, doing: &str) {
        let (from, width) = self.span.lock().map_or((0.0, 1.0), |span| *span);
        let position = (from + width * share.clamp(0.0, 1.0)) * Self::STEPS as f64;
        self.bar.set_position(position as u64);
        self.bar.set_message(doing.to_owned());
    }
}

/// The progress line of a batch on stderr; hidden unless stderr is a terminal.
pub(crate) struct BatchLine {
    is_shown: bool,
    /// Made when there is something to show.
    bar: OnceCell<ProgressBar>,
}

impl BatchLine {
    /// A line that is shown where `shown` permits it.
    pub(crate) fn new(shown: Shown) -> Self {
        Self {
            is_shown: shown != Shown::Off && io::stderr().is_terminal(),
            bar: OnceCell::new(),
        }
    }
}

impl BatchDisplay for BatchLine {
    fn is_shown(&self) -> bool {
        self.is_shown
    }

    fn at(&self, ended: usize, jobs: usize, message: &str) {
        if !self.is_shown {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let target = ProgressDrawTarget::stderr_with_hz(5);
            let bar = ProgressBar::with_draw_target(Some(jobs as u64), target);
            match ProgressStyle::with_template("{bar:24} {pos}/{len}  {wide_msg}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        bar.set_position(ended as u64);
        bar.set_message(message.to_owned());
    }

    fn aside(&self, act: &mut dyn FnMut()) {
        match self.bar.get() {
            Some(bar) => bar.suspend(act),
            None => act(),
        }
    }

    fn finish(&self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }

    fn print(&self, stream: JobStream, output: &mut File) -> io::Result<()> {
        match stream {
            JobStream::Stdout => copy(output, &mut io::stdout().lock()),
            JobStream::Stderr => copy(output, &mut io::stderr().lock()),
        }
    }
}

fn copy(output: &mut File, to: &mut impl io::Write) -> io::Result<()> {
    io::copy(output, to)?;
    to.flush()
}
