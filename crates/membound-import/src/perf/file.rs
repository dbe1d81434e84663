//! Parses the file around the records: the header of a file or of a pipe.

use std::ops::Range;

use super::about::{About, feature};
use super::attr::{self, Attr};
use super::record::number;
use crate::Error;
use crate::bytes::{ByteOrder, Cursor};

/// A section of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Section {
    at: u64,
    size: u64,
}

impl Section {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        Some(Self {
            at: cursor.u64()?,
            size: cursor.u64()?,
        })
    }

    /// The bytes of the section; `what` names it in an error.
    fn of<'a>(&self, file: &'a [u8], what: &'static str) -> Result<&'a [u8], Error> {
        let cut = Error::Cut { what, at: self.at };
        let end = self.at.checked_add(self.size).ok_or_else(|| cut.clone())?;
        let range = usize::try_from(self.at).ok().zip(usize::try_from(end).ok());
        range.and_then(|(from, to)| file.get(from..to)).ok_or(cut)
    }
}

/// An event as the file declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Declared {
    pub(super) attr: Attr,
    pub(super) ids: Vec<u64>,
    /// Name from a separate record in a pipe.
    pub(super) name: Option<String>,
}

/// Everything around the records; in a pipe it comes between them.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) order: ByteOrder,
    pub(super) about: About,
    pub(super) declared: Vec<Declared>,
    /// Range of the records in the file.
    pub(super) records: Range<usize>,
}

/// Parses the header of a file or of a pipe.
pub(super) fn read(file: &[u8]) -> Result<Container, Error> {
    let order = super::order(file).ok_or(Error::Unknown)?;
    let cut = Error::Cut {
        what: "the header",
        at: 0,
    };
    let mut cursor = Cursor::new(file, order);
    let size = cursor.skip(8).and_then(|()| cursor.u64()).ok_or(cut)?;
    /// Size of a pipe's header: the magic number and this size.
    const OF_PIPE: u64 = 16;
    if size == OF_PIPE {
        return pipe(file, order);
    }
    read_container(file, order)
}

fn read_container(file: &[u8], order: ByteOrder) -> Result<Container, Error> {
    /// 64-bit words of the bitmap of features.
    const FEATURE_WORDS: u64 = 4;
    let cut = |what, at| Error::Cut { what, at };
    let mut cursor = Cursor::new(file, order);
    let mut header = || {
        cursor.skip(16)?;
        let attr_size = cursor.u64()?;
        let attrs = Section::read(&mut cursor)?;
        let data = Section::read(&mut cursor)?;
        let _event_types = Section::read(&mut cursor)?;
        let features = cursor.words(FEATURE_WORDS)?;
        Some((attr_size, attrs, data, features))
    };
    let (attr_size, attrs, data, features) = header().ok_or_else(|| cut("the header", 0))?;
    if data.size == 0 {
        return Err(Error::NotEnded);
    }
    data.of(file, "the block of records")?;
    let declared = declared(file, order, attr_size, attrs)?;
    let mut about = About::default();
    let table = Section {
        at: data.at.saturating_add(data.size),
        size: 16
            * features
                .iter()
                .map(|word| u64::from(word.count_ones()))
                .sum::<u64>(),
    };
    let mut table = Cursor::new(table.of(file, "the table of headers")?, order);
    for number in 0..FEATURE_WORDS as u32 * 64 {
        let word = features.get(number as usize / 64).unwrap_or(0);
        if word >> (number % 64) & 1 == 0 {
            continue;
        }
        refuse(number)?;
        let section = Section::read(&mut table).ok_or_else(|| cut("the table of headers", 0))?;
        about.add(number, section.of(file, "a header")?, order);
    }
    let from = data.at as usize;
    Ok(Container {
        order,
        about,
        declared,
        records: from..from + data.size as usize,
    })
}

/// Refuses a file with a feature that means that its records cannot be read here.
pub(super) const fn refuse(number: u32) -> Result<(), Error> {
    match number {
        feature::DIRECTORY => Err(Error::InDirectory),
        feature::COMPRESSED => Err(Error::Compressed),
        _ => Ok(()),
    }
}

fn declared(
    file: &[u8],
    order: ByteOrder,
    attr_size: u64,
    attrs: Section,
) -> Result<Vec<Declared>, Error> {
    /// Each attribute is followed by the section of its identifiers, in bytes.
    const OF_IDS: u64 = 16;
    let bytes = attrs.of(file, "the block of events")?;
    let damaged = |problem| Error::Damaged {
        what: "the block of events",
        at: attrs.at,
        problem,
    };
    let length = attr_size.checked_sub(OF_IDS);
    let length = length
        .filter(|length| *length >= attr::SMALLEST)
        .ok_or_else(|| damaged("has elements that are too small"))?;
    let mut cursor = Cursor::new(bytes, order);
    let mut declared = Vec::new();
    for _ in 0..attrs.size / attr_size {
        let next = (|| Some((cursor.take(length)?, Section::read(&mut cursor)?)))();
        let (attr, ids) = next.ok_or_else(|| damaged("ends too soon"))?;
        let attr =
            Attr::read(attr, order).ok_or_else(|| damaged("has an event that is cut off"))?;
        let ids = ids.of(file, "the identifiers of an event")?;
        let words = Cursor::new(ids, order).words(ids.len() as u64 / 8);
        declared.push(Declared {
            attr,
            ids: words.iter().flat_map(|words| words.iter()).collect(),
            name: None,
        });
    }
    Ok(declared)
}

/// In a pipe, events and features come as records.
fn pipe(file: &[u8], order: ByteOrder) -> Result<Container, Error> {
    let records = 16..file.len();
    let mut container = Container {
        order,
        about: About::default(),
        declared: Vec::new(),
        records: records.clone(),
    };
    for frame in Frames::new(file, records, order) {
        let frame = frame?;
        let mut at = Cursor::new(frame.body, order);
        match frame.number {
            number::ATTR => container.declared.push(in_record(&frame, order)?),
            number::FEATURE => {
                if let Some(number) = at.u64().and_then(|number| u32::try_from(number).ok()) {
                    refuse(number)?;
                    container.about.add(number, at.rest(), order);
                }
            }
            number::EVENT_UPDATE => rename(&mut container.declared, at),
            number::BUILD_ID => {
                let found = super::about::identity(frame.body, frame.misc, order);
                container.about.identities.extend(found);
            }
            _ => {}
        }
    }
    Ok(container)
}

fn in_record(frame: &RecordFrame<'_>, order: ByteOrder) -> Result<Declared, Error> {
    let damaged = Error::Damaged {
        what: "an event",
        at: frame.at,
        problem: "is cut off",
    };
    let read = || {
        let attr = Attr::read(frame.body, order)?;
        let mut sizes = Cursor::new(frame.body, order);
        let (_, size) = (sizes.u32()?, sizes.u32()?);
        let size = if size == 0 {
            attr::SMALLEST
        } else {
            u64::from(size)
        };
        let mut at = Cursor::new(frame.body, order);
        at.skip(size)?;
        let words = at.words(at.rest().len() as u64 / 8)?;
        Some(Declared {
            attr,
            ids: words.iter().collect(),
            name: None,
        })
    };
    read().ok_or(damaged)
}

/// Applies a record that gives an event its name.
fn rename(declared: &mut [Declared], mut at: Cursor<'_>) {
    /// The kind of update that is a name.
    const NAME: u64 = 2;
    let Some((kind, id)) = at.u64().zip(at.u64()) else {
        return;
    };
    let event = declared.iter_mut().find(|event| event.ids.contains(&id));
    if let Some(event) = event.filter(|_| kind == NAME) {
        event.name = Some(crate::bytes::text(at.rest()));
    }
}

/// A record with its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordFrame<'a> {
    /// Offset of the record in the file.
    pub(super) at: u64,
    pub(super) number: u32,
    pub(super) misc: u16,
    pub(super) body: &'a [u8],
    /// Bytes after the record that belong to it.
    pub(super) behind: &'a [u8],
}

/// Iterates over the records of a file, in the file's order.
#[derive(Clone, Debug)]
pub(super) struct Frames<'a> {
    file: &'a [u8],
    rest: Range<usize>,
    order: ByteOrder,
}

impl<'a> Frames<'a> {
    /// The records in a `range` of the file.
    pub(super) const fn new(file: &'a [u8], range: Range<usize>, order: ByteOrder) -> Self {
        Self {
            file,
            rest: range,
            order,
        }
    }

    fn read(&mut self) -> Result<RecordFrame<'a>, Error> {
        const HEADER: u64 = 8;
        let at = self.rest.start as u64;
        let cut = || Error::Cut {
            what: "a record",
            at,
        };
        let bytes = self.file.get(self.rest.clone()).ok_or_else(cut)?;
        let mut cursor = Cursor::new(bytes, self.order);
        let header = (|| Some((cursor.u32()?, cursor.u16()?, cursor.u16()?)))();
        let (number, misc, size) = header.ok_or_else(cut)?;
        let length = u64::from(size).checked_sub(HEADER).ok_or(Error::Damaged {
            what: "a record",
            at,
            problem: "is shorter than its own header",
        })?;
        let body = cursor.take(length).ok_or_else(cut)?;
        let mut first = Cursor::new(body, self.order);
        let follows = match number {
            number::TRACE => first.u64(),
            number::TRACING_DATA => first.u32().map(u64::from),
            number::COMPRESSED | number::COMPRESSED_2 => return Err(Error::Compressed),
            _ => Some(0),
        };
        let behind = follows
            .and_then(|length| cursor.take(length))
            .ok_or_else(cut)?;
        self.rest.start = self.rest.end - cursor.rest().len();
        Ok(RecordFrame {
            at,
            number,
            misc,
            body,
            behind,
        })
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<RecordFrame<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.rest.start = self.rest.end;
        }
        Some(read)
    }
}
