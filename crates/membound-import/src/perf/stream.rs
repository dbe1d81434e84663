//! All records of a file in time order.
//!
//! The file is read once to check every record and to find its time. Only a record's position is kept; the
//! record is parsed again when it is requested.

use rustc_hash::FxHashMap;

use super::about::About;
use super::attr::{Attr, sample_type};
use super::event::Event;
use super::file::{self, Container, Frames, RecordFrame};
use super::record::{self, Lost, Record, number};
use super::sample::{self, Sample};
use super::trace::{self, Conversion, Trace, TraceKind};
use crate::bytes::{ByteOrder, Cursor};
use crate::skipped::{Skipped, Tally};
use crate::spe::{self, Next, Sources};
use crate::{Error, Sampler};

/// Position of a record.
#[derive(Clone, Copy, Debug)]
struct RecordPosition {
    t_ns: u64,
    at: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// A record of the file, with its header.
    Framed,
    /// An operation in a hardware trace: its length in bytes, and index of the trace.
    Traced { length: u32, trace: u32 },
}

/// A perf.data file whose records are all valid.
#[derive(Debug)]
pub struct PerfData<'a> {
    file: &'a [u8],
    order: ByteOrder,
    about: About,
    layout: Layout,
    events: Vec<Event>,
    places: Vec<RecordPosition>,
    /// Hardware traces, and the offset in the file at which the bytes of each begin.
    traces: Vec<(Trace, usize)>,
    conversion: Option<Conversion>,
    sources: Sources,
    samples: u64,
    lost: Lost,
    skipped: Tally,
}

impl<'a> PerfData<'a> {
    /// Reads a file, or the output of a pipe.
    ///
    /// # Errors
    /// When any part of it is invalid.
    pub fn read(file: &'a [u8]) -> Result<Self, Error> {
        let Container {
            order,
            about,
            declared,
            records,
        } = file::read(file)?;
        let names = |attr: &Attr, ids: &[u64]| {
            let described = about.events.iter().find(|described| {
                described.attr == *attr && (ids.is_empty() || described.ids == ids)
            });
            described.map(|described| described.name.as_str())
        };
        let mut events = Vec::new();
        for event in &declared {
            let name = event.name.as_deref();
            let name = name.or_else(|| names(&event.attr, &event.ids));
            let read = Event::of(&event.attr, name, &about);
            event.attr.check(&read.name)?;
            events.push(read);
        }
        let layout = Layout::of(&declared)?;
        let sources = trace::sources(&about);
        let mut data = Self {
            file,
            order,
            about,
            layout,
            events,
            places: Vec::new(),
            traces: Vec::new(),
            conversion: None,
            sources,
            samples: 0,
            lost: Lost::default(),
            skipped: Tally::default(),
        };
        data.walk(Frames::new(file, records, order))?;
        if data.samples == 0 {
            return Err(Error::NoSamples);
        }
        // Records are in order for each CPU, and nearly so across CPUs.
        data.places.sort_by_key(|place| place.t_ns);
        Ok(data)
    }

    /// Description of the machine and of the recording.
    #[must_use]
    pub const fn about(&self) -> &About {
        &self.about
    }

    /// All recorded events.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Number of samples.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Time of the earliest record that has one.
    #[must_use]
    pub fn first_ns(&self) -> Option<u64> {
        let mut times = self.places.iter().map(|place| place.t_ns);
        times.find(|t_ns| *t_ns > 0)
    }

    /// Losses during the recording.
    #[must_use]
    pub const fn lost(&self) -> Lost {
        self.lost
    }

    /// Contents of the file that are not among the records.
    #[must_use]
    pub fn skipped(&self) -> Vec<Skipped> {
        self.skipped.list()
    }

    /// All records in time order; records without a time come first.
    pub fn records(&self) -> impl Iterator<Item = Record<'a>> + '_ {
        self.places.iter().filter_map(|place| self.at(place))
    }

    fn walk(&mut self, frames: Frames<'a>) -> Result<(), Error> {
        let mut kind = None;
        let mut pending = Vec::new();
        for frame in frames {
            let frame = frame?;
            match frame.number {
                number::SAMPLE => self.sample(&frame)?,
                number::MMAP | number::MMAP2 | number::COMM | number::FORK | number::EXIT => {
                    self.event(&frame)?;
                }
                number::LOST => {
                    let mut at = Cursor::new(frame.body, self.order);
                    let lost = at.u64().and_then(|_| at.u64());
                    self.lost.records = self.lost.records.saturating_add(lost.unwrap_or(0));
                }
                number::LOST_SAMPLES => {
                    let lost = Cursor::new(frame.body, self.order).u64();
                    self.lost.samples = self.lost.samples.saturating_add(lost.unwrap_or(0));
                }
                number::TRACE_INFO => kind = TraceKind::read(frame.body, self.order),
                number::TIME_CONVERSION => {
                    self.conversion = Conversion::read(frame.body, self.order);
                }
                number::TRACE => pending.push(frame),
                number if is_known(number) => {}
                number => self
                    .skipped
                    .add(format!("records of unknown type {number}"), 1),
            }
        }
        // The record that converts their times may come after them.
        for frame in pending {
            self.trace(&frame, kind)?;
        }
        Ok(())
    }

    fn sample(&mut self, frame: &RecordFrame<'a>) -> Result<(), Error> {
        let Some(event) = self.layout.of_sample(frame.body, self.order) else {
            self.skipped
                .add("samples of events that the file does not name", 1);
            return Ok(());
        };
        let read = self.read_sample(frame, event).ok_or(Error::Damaged {
            what: "a sample",
            at: frame.at,
            problem: "is shorter than its fields",
        })?;
        self.samples += 1;
        self.places.push(RecordPosition {
            t_ns: read.t_ns.unwrap_or(0),
            at: frame.at,
            what: What::Framed,
        });
        Ok(())
    }

    fn read_sample(&self, frame: &RecordFrame<'a>, event: usize) -> Option<Sample<'a>> {
        let attr = self.layout.attrs.get(event)?;
        let of_event = self.events.get(event)?;
        let read = sample::read(frame.body, frame.misc, self.order, attr, of_event)?;
        Some(Sample {
            event: Some(event),
            ..read
        })
    }

    fn event(&mut self, frame: &RecordFrame<'a>) -> Result<(), Error> {
        let read = self.read_event(frame).ok_or(Error::Damaged {
            what: "a record",
            at: frame.at,
            problem: "is shorter than its fields",
        })?;
        let t_ns = match read {
            Record::Sample(sample) => sample.t_ns,
            Record::Map(map) => map.t_ns,
            Record::Comm(comm) => comm.t_ns,
            Record::Fork(fork) => fork.t_ns,
            Record::Exit(exit) => exit.t_ns,
        };
        self.places.push(RecordPosition {
            t_ns: t_ns.unwrap_or(0),
            at: frame.at,
            what: What::Framed,
        });
        Ok(())
    }

    fn read_event(&self, frame: &RecordFrame<'a>) -> Option<Record<'a>> {
        let (body, t_ns) = self.layout.without_trailer(frame.body, self.order);
        let (number, misc) = (frame.number, frame.misc);
        record::read(number, misc, body, t_ns, self.order)
    }

    fn trace(&mut self, frame: &RecordFrame<'a>, kind: Option<TraceKind>) -> Result<(), Error> {
        if kind != Some(TraceKind::Spe) {
            let what = "bytes of a processor's trace of control flow";
            self.skipped.add(what, frame.behind.len() as u64);
            return Ok(());
        }
        let damaged = Error::Damaged {
            what: "a trace",
            at: frame.at,
            problem: "is shorter than its header",
        };
        let trace = Trace::read(frame.body, self.order).ok_or(damaged)?;
        let number = u32::try_from(self.traces.len()).unwrap_or(u32::MAX);
        let begin = frame.at + 8 + frame.body.len() as u64;
        self.traces
            .push((trace, usize::try_from(begin).unwrap_or(usize::MAX)));
        for next in spe::Records::new(frame.behind, self.sources) {
            match next {
                Next::Rest(bytes) => {
                    self.skipped
                        .add("bytes of SPE that are no whole operation", bytes as u64);
                }
                Next::Record(_, record) if record.access.is_none() => {
                    self.skipped
                        .add("operations that SPE sampled and that access no memory", 1);
                }
                Next::Record(range, record) => {
                    self.samples += 1;
                    self.places.push(RecordPosition {
                        t_ns: self.time_of(record.timestamp).unwrap_or(0),
                        at: begin + range.start as u64,
                        what: What::Traced {
                            length: u32::try_from(range.len()).unwrap_or(u32::MAX),
                            trace: number,
                        },
                    });
                }
            }
        }
        Ok(())
    }

    /// Time of an operation. Without a conversion, the timer's time is returned as it is, which keeps the
    /// order.
    fn time_of(&self, timestamp: Option<u64>) -> Option<u64> {
        let time = timestamp?;
        Some(
            self.conversion
                .map_or(time, |conversion| conversion.t_ns(time)),
        )
    }

    /// Parses a record again.
    fn at(&self, place: &RecordPosition) -> Option<Record<'a>> {
        let from = usize::try_from(place.at).ok()?;
        match place.what {
            What::Framed => {
                let range = from..self.file.len();
                let frame = Frames::new(self.file, range, self.order).next()?.ok()?;
                if frame.number != number::SAMPLE {
                    return self.read_event(&frame);
                }
                let event = self.layout.of_sample(frame.body, self.order)?;
                self.read_sample(&frame, event).map(Record::Sample)
            }
            What::Traced { length, trace } => {
                let (trace, begin) = self.traces.get(trace as usize)?;
                let bytes = self.file.get(*begin..from.checked_add(length as usize)?)?;
                let mut records =
                    spe::Records::from(bytes, from.checked_sub(*begin)?, self.sources);
                let Next::Record(_, record) = records.next()? else {
                    return None;
                };
                let is_spe = |event: &Event| event.sampler == Some(Sampler::Spe);
                let event = self.events.iter().position(is_spe);
                let period = event.and_then(|event| self.events[event].period);
                let t_ns = self.time_of(record.timestamp);
                let sample = trace.sample(&record, event, period, t_ns);
                Some(Record::Sample(sample))
            }
        }
    }
}

/// True if the record type is known, even if it is not used here.
const fn is_known(number: u32) -> bool {
    let of_kernel = number >= 1 && number <= number::LAST_OF_KERNEL;
    let of_perf = number >= number::FIRST_OF_PERF && number <= number::LAST_OF_PERF;
    of_kernel || of_perf
}

/// Maps records to events, and finds the time in records.
#[derive(Debug)]
struct Layout {
    attrs: Vec<Attr>,
    events: FxHashMap<u64, usize>,
    /// Offset of the identifier in a sample, in bytes; `None` if there is only one event.
    id_at: Option<u64>,
    /// True if the trailers of records that are no samples have the same layout for all events.
    ends_alike: bool,
}

impl Layout {
    fn of(declared: &[file::Declared]) -> Result<Self, Error> {
        let first = declared.first().ok_or(Error::NoEvents)?;
        let attrs: Vec<Attr> = declared.iter().map(|event| event.attr.clone()).collect();
        let id_at = first.attr.id_in_sample();
        let alike = attrs.iter().all(|attr| attr.id_in_sample() == id_at);
        if attrs.len() > 1 && (!alike || id_at.is_none()) {
            return Err(Error::Ambiguous);
        }
        const END: u64 = sample_type::TID
            | sample_type::TIME
            | sample_type::ID
            | sample_type::STREAM_ID
            | sample_type::CPU
            | sample_type::IDENTIFIER;
        let end = |attr: &Attr| (attr.has_sample_id, attr.sample_type & END);
        let ends_alike = attrs.iter().all(|attr| end(attr) == end(&first.attr));
        let identified = attrs.iter().map(Attr::id_in_others);
        if !ends_alike && !identified.clone().all(|at| at == Some(8)) {
            return Err(Error::Ambiguous);
        }
        let mut events = FxHashMap::default();
        for (number, event) in declared.iter().enumerate() {
            events.extend(event.ids.iter().map(|id| (*id, number)));
        }
        Ok(Self {
            id_at: if attrs.len() > 1 { id_at } else { None },
            attrs,
            events,
            ends_alike,
        })
    }

    /// The event with an identifier. perf's own records have identifier 0, and the layout of the first event.
    fn event(&self, id: u64) -> Option<usize> {
        match self.events.get(&id) {
            Some(event) => Some(*event),
            None => (id == 0).then_some(0),
        }
    }

    /// The event of a sample; `None` if the file does not declare it.
    fn of_sample(&self, body: &[u8], order: ByteOrder) -> Option<usize> {
        let Some(before) = self.id_at else {
            return Some(0);
        };
        let mut at = Cursor::new(body, order);
        match at.skip(before).and_then(|()| at.u64()) {
            Some(id) => self.event(id),
            // Too short: an error follows when its fields are parsed.
            None => Some(0),
        }
    }

    /// The body of a record that is no sample, and its time.
    fn without_trailer<'a>(&self, body: &'a [u8], order: ByteOrder) -> (&'a [u8], Option<u64>) {
        let event = if self.ends_alike {
            Some(0)
        } else {
            let last = body.len().saturating_sub(8);
            let id = Cursor::new(&body[last..], order).u64();
            id.and_then(|id| self.event(id))
        };
        let Some(attr) = event.and_then(|event| self.attrs.get(event)) else {
            return (body, None);
        };
        let length = attr.trailer() as usize;
        let Some((body, trailer)) = body.len().checked_sub(length).map(|at| body.split_at(at))
        else {
            return (body, None);
        };
        if length == 0 || !attr.has(sample_type::TIME) {
            return (body, None);
        }
        let mut at = Cursor::new(trailer, order);
        if attr.has(sample_type::TID) {
            let _ = at.skip(8);
        }
        // perf's descriptions of the time before the recording have time 0.
        (body, at.u64().filter(|t_ns| *t_ns > 0))
    }
}
