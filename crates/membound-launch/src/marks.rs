//! Functions of a file that are wrapped or marked to measure requests.
//!
//! Sockets are observed through the C library's functions: their entries are patched, so any caller and any
//! pointer to them is covered. Programs that make system calls themselves are not covered.

use std::fmt;
use std::str::FromStr;

use membound_rewrite::image::Image;
use membound_rewrite::patch::{Body, Groundwork, Hooks, Mark, Options, Sites, Wrapped};
use membound_wire::WrapKind;

/// How requests of the command are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestsBy {
    /// From a receive on a socket to the next send on it.
    Sockets,
    /// Each call of the functions with this name in symbol tables; of recursive calls the outermost.
    Calls(String),
    /// From a thread's last call of one function to its next call of another one.
    Between {
        /// The function that begins a request.
        begin: String,
        /// The function that ends a request.
        end: String,
    },
}

impl fmt::Display for RequestsBy {
    /// Writes it as the user specifies it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sockets => out.write_str("sockets"),
            Self::Calls(name) => out.write_str(name),
            Self::Between { begin, end } => write!(out, "{begin}..{end}"),
        }
    }
}

impl FromStr for RequestsBy {
    type Err = String;

    /// Parses `sockets`, `FUNCTION` or `BEGIN..END`.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |name: &str| {
            !name.is_empty()
                && !name.contains("..")
                && !name.contains(|letter: char| letter.is_whitespace() || letter.is_control())
        };
        match text.split_once("..") {
            _ if text == "sockets" => Ok(Self::Sockets),
            None if is_name(text) => Ok(Self::Calls(text.to_owned())),
            Some((begin, end)) if begin == end => {
                Err(format!("`{text}`: a request cannot end where it begins"))
            }
            Some((begin, end)) if is_name(begin) && is_name(end) => Ok(Self::Between {
                begin: begin.to_owned(),
                end: end.to_owned(),
            }),
            _ => Err(format!(
                "`{text}` is neither `sockets`, nor a function, nor two as in BEGIN..END"
            )),
        }
    }
}

/// Functions of the C library by which descriptors receive, send, open and close. Those with checks
/// (`__recv_chk`) jump to these.
const SOCKETS: &[(&str, WrapKind)] = &[
    ("read", WrapKind::Receive),
    ("readv", WrapKind::Receive),
    ("recv", WrapKind::Receive),
    ("recvfrom", WrapKind::Receive),
    ("recvmsg", WrapKind::Receive),
    ("recvmmsg", WrapKind::ReceiveMany),
    ("write", WrapKind::Send),
    ("writev", WrapKind::Send),
    ("send", WrapKind::Send),
    ("sendto", WrapKind::Send),
    ("sendmsg", WrapKind::Send),
    ("sendmmsg", WrapKind::Send),
    ("sendfile", WrapKind::Send),
    ("sendfile64", WrapKind::Send),
    ("splice", WrapKind::SendThird),
    ("close", WrapKind::Close),
    ("close_range", WrapKind::CloseRange),
    ("closefrom", WrapKind::CloseFrom),
    ("dup", WrapKind::Open),
    ("dup2", WrapKind::Replace),
    ("dup3", WrapKind::Replace),
    ("socket", WrapKind::Open),
    ("socketpair", WrapKind::OpenTwo),
    ("accept", WrapKind::Open),
    ("accept4", WrapKind::Open),
];
/// A file that has all of these is a C library, or a program that contains one: other files may have a
/// function of their own with the name `send`.
const OF_A_LIBRARY: [&str; 5] = ["read", "write", "recvfrom", "sendto", "accept"];

/// The patches that measure requests in `image`; `None` if it has none of the functions.
pub(crate) fn marks<'a>(
    image: &Image<'_>,
    by: &RequestsBy,
    groundwork: impl Fn() -> &'a Groundwork,
) -> Result<Option<Options>, String> {
    let has = |name: &str| !image.functions_named(|it| it == name.as_bytes()).is_empty();
    let mut marked: Vec<(u64, Mark)> = Vec::new();
    let mut wrapped = Vec::new();
    let cannot = |name: &str, why: &dyn fmt::Display| format!("calls of {name}: {why}");
    match by {
        RequestsBy::Sockets if OF_A_LIBRARY.into_iter().all(has) => {
            let present = SOCKETS.iter().filter(|(name, _)| has(name));
            wrapped.extend(present.map(|(name, kind)| Wrapped {
                name: (*name).to_owned(),
                number: *kind as u32,
            }));
        }
        RequestsBy::Calls(name) if has(name) => {
            let calls = groundwork().calls(image, name);
            let calls = calls.map_err(|why| cannot(name, &why))?;
            marked.extend(calls.begins.iter().map(|at| (*at, Mark::Enter)));
            marked.extend(calls.ends.iter().map(|at| (*at, Mark::Leave)));
        }
        RequestsBy::Between { begin, end } => {
            for (name, mark) in [(begin, Mark::Begin), (end, Mark::End)] {
                if has(name) {
                    let entries = groundwork().entries(image, name);
                    let entries = entries.map_err(|why| cannot(name, &why))?;
                    marked.extend(entries.into_iter().map(|at| (at, mark)));
                }
            }
        }
        RequestsBy::Sockets | RequestsBy::Calls(_) => {}
    }
    marked.sort_unstable_by_key(|(at, _)| *at);
    if let Some(both) = marked.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let at = both[0].0;
        return Err(format!("what begins and ends requests is one at {at:#x}"));
    }
    if marked.is_empty() && wrapped.is_empty() {
        return Ok(None);
    }
    let mut options = Options::bare(Hooks::LeaveOut);
    options.sites = Sites::Instructions(marked.iter().map(|(at, _)| *at).collect());
    options.bodies = marked
        .into_iter()
        .map(|(at, mark)| (at, Body::Mark(mark)))
        .collect();
    options.wrapped = wrapped;
    Ok(Some(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_given_as_sockets_or_functions() {
        let parsed = |text: &str| text.parse::<RequestsBy>();
        assert_eq!(parsed("sockets"), Ok(RequestsBy::Sockets));
        assert_eq!(
            parsed("_ZN5serveEv"),
            Ok(RequestsBy::Calls("_ZN5serveEv".to_owned()))
        );
        let between = RequestsBy::Between {
            begin: "begin".to_owned(),
            end: "end".to_owned(),
        };
        assert_eq!(parsed("begin..end"), Ok(between));
        for text in ["", "..", "a..", "..b", "a..b..c", "a b", "a..a"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    fn marks_of_this_program(by: &RequestsBy) -> Result<Option<Options>, String> {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let image = Image::parse(&bytes).unwrap();
        let groundwork = Groundwork::of(&image, &Options::bare(Hooks::LeaveOut));
        marks(&image, by, || &groundwork)
    }

    #[test]
    fn calls_are_marked_where_they_begin_and_end() {
        let options = marks_of_this_program(&RequestsBy::Calls("main".to_owned()));
        let options = options.unwrap().unwrap();
        let count = |mark| {
            let is = |body: &&(u64, Body)| body.1 == Body::Mark(mark);
            options.bodies.iter().filter(is).count()
        };
        assert_eq!(count(Mark::Enter), 1);
        assert!(count(Mark::Leave) > 0);
        let Sites::Instructions(sites) = &options.sites else {
            panic!("{:?}", options.sites);
        };
        assert_eq!(sites.len(), options.bodies.len());
    }

    #[test]
    fn a_program_without_a_libc_of_its_own_has_nothing_to_wrap() {
        for by in [
            RequestsBy::Sockets,
            RequestsBy::Calls("no such function".to_owned()),
        ] {
            assert_eq!(marks_of_this_program(&by), Ok(None));
        }
    }

    #[test]
    fn a_request_cannot_begin_where_it_ends() {
        let by = RequestsBy::Between {
            begin: "main".to_owned(),
            end: "main".to_owned(),
        };
        let refused = marks_of_this_program(&by).unwrap_err();
        assert!(refused.contains("begins and ends"), "{refused}");
    }
}
