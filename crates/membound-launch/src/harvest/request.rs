//! The request by which the agent starts a scavenger.

use std::ffi::OsStr;
use std::io;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use membound_wire::{ScavengerPlacement, ScavengerRequest};

use super::wanted::ScavengerCommand;
use crate::memory::Shared;

/// A request in shared memory, and its length in bytes.
pub(super) struct Request {
    pub(super) memory: Shared,
    pub(super) length: u64,
}

/// Makes the request for a scavenger, which is to start at the place `begins`.
pub(super) fn request(
    scavenger: &ScavengerCommand,
    begins: ScavengerPlacement,
) -> io::Result<Request> {
    let path = |path: &Option<PathBuf>| {
        let bytes = path.as_deref().map(|path| path.as_os_str().as_bytes());
        bytes.unwrap_or_default().to_vec()
    };
    let mut strings = vec![
        scavenger.path.as_os_str().as_bytes().to_vec(),
        path(&scavenger.output),
        path(&scavenger.errors),
    ];
    let words = scavenger.arguments.iter().chain(&scavenger.environment);
    strings.extend(words.map(|word| OsStr::as_bytes(word).to_vec()));
    let mut text = Vec::new();
    for string in strings {
        if string.contains(&0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        text.extend(string);
        text.push(0);
    }
    let length = size_of::<ScavengerRequest>() + text.len();
    let memory = Shared::zeroed("membound-guest", length)?;
    let count = |count: usize| u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput);
    let word = |offset: usize, value: u32| memory.word32(offset).store(value, Ordering::Relaxed);
    word(
        offset_of!(ScavengerRequest, arguments),
        count(scavenger.arguments.len())?,
    );
    word(
        offset_of!(ScavengerRequest, variables),
        count(scavenger.environment.len())?,
    );
    word(offset_of!(ScavengerRequest, strings), count(text.len())?);
    let long = |offset: usize, value: u64| memory.word64(offset).store(value, Ordering::Relaxed);
    long(offset_of!(ScavengerRequest, memory), scavenger.memory_bytes);
    long(offset_of!(ScavengerRequest, stack), scavenger.stack_bytes);
    word(offset_of!(ScavengerRequest, place), begins as u32);
    memory.write(size_of::<ScavengerRequest>() as u64, &text)?;
    Ok(Request {
        memory,
        length: length as u64,
    })
}

#[cfg(test)]
mod tests {
    use membound_wire::ScavengerProcessState;

    use super::super::status::status;
    use super::*;

    fn scavenger() -> ScavengerCommand {
        ScavengerCommand {
            path: "/bin/scan".into(),
            arguments: vec!["scan".into(), "-n".into()],
            environment: vec!["A=b".into()],
            output: Some("/tmp/out".into()),
            errors: None,
            memory_bytes: 1 << 30,
            stack_bytes: 1 << 20,
        }
    }

    #[test]
    fn a_request_has_its_strings_behind_it() {
        let request = request(&scavenger(), ScavengerPlacement::RunQueues).unwrap();
        let expected = b"/bin/scan\0/tmp/out\0\0scan\0-n\0A=b\0";
        let mut text = vec![0; expected.len()];
        let begin = size_of::<ScavengerRequest>() as u64;
        request.memory.read(begin, &mut text).unwrap();
        assert_eq!(text, expected);
        assert_eq!(request.length, begin + expected.len() as u64);
        let status = status(Some(&request.memory));
        assert_eq!(status.state, Some(ScavengerProcessState::Starting));
        let word = offset_of!(ScavengerRequest, arguments);
        assert_eq!(request.memory.word32(word).load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_word_with_a_zero_byte_is_no_argument() {
        let mut scavenger = scavenger();
        scavenger.arguments.push("a\0b".into());
        assert!(request(&scavenger, ScavengerPlacement::RunQueues).is_err());
    }
}
