//! The list of commands, one per line, and how each is run.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

/// A command of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// Position in the list, from 1.
    pub(super) number: u64,
    /// The line without surrounding blanks.
    pub(super) line: OsString,
    pub(super) execution: Execution,
}

/// How a command is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Execution {
    /// The program is executed without a shell.
    Direct { path: PathBuf, words: Vec<OsString> },
    /// `sh -c` runs the line.
    Shell,
}

/// Parses the commands of a list. `find` returns the file of a program's name.
///
/// # Errors
/// If a line holds a NUL byte, which no argument can.
pub(super) fn parse(
    text: &[u8],
    find: &dyn Fn(&OsStr) -> Option<PathBuf>,
) -> Result<Vec<Listed>, String> {
    let mut listed = Vec::new();
    for (row, line) in (1_u64..).zip(text.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if line.contains(&0) {
            return Err(format!(
                "line {row} is not a command: it contains a NUL byte"
            ));
        }
        listed.push(Listed {
            number: listed.len() as u64 + 1,
            line: OsStr::from_bytes(line).to_owned(),
            execution: choose_execution(line, find),
        });
    }
    Ok(listed)
}

/// Chooses direct execution where a shell would do the same: the line consists of plain words, and the first
/// names a file, not a shell builtin. Everything else goes to the shell, which also reports errors.
fn choose_execution(line: &[u8], find: &dyn Fn(&OsStr) -> Option<PathBuf>) -> Execution {
    plain_words(line)
        .and_then(|words| {
            let path = find(words.first()?)?;
            Some(Execution::Direct { path, words })
        })
        .unwrap_or(Execution::Shell)
}

/// The words of a line, or `None` if a shell would expand, redirect or assign something in it.
fn plain_words(line: &[u8]) -> Option<Vec<OsString>> {
    if !is_plain(line) {
        return None;
    }
    let words = shlex::bytes::split(line)?;
    let first = words.first()?;
    if first.is_empty()
        || first.contains(&b'=')
        || SHELL_WORDS.iter().any(|word| word.as_bytes() == first)
    {
        return None;
    }
    Some(words.into_iter().map(OsString::from_vec).collect())
}

/// Whether no character of a line has a meaning for the shell, except quotes.
fn is_plain(line: &[u8]) -> bool {
    let mut quote = None;
    for byte in line {
        match (quote, byte) {
            (Some(open), byte) if *byte == open => quote = None,
            (Some(b'\''), _) => {}
            // In double quotes a backslash has rules of its own, and outside it escapes the next byte: left
            // to the shell.
            (_, b'$' | b'`' | b'\\') => return false,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(*byte),
            (None, byte) if b"|&;<>()*?[]#~!{}\r".contains(byte) => return false,
            (None, _) => {}
        }
    }
    quote.is_none()
}

/// Reserved words and builtins of shells, including those for which a program with slightly different
/// behaviour exists.
const SHELL_WORDS: [&str; 58] = [
    ".", ":", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command",
    "continue", "declare", "do", "done", "echo", "elif", "else", "enable", "esac", "eval", "exec",
    "exit", "export", "fc", "fg", "fi", "for", "function", "getopts", "hash", "help", "history",
    "if", "in", "jobs", "kill", "let", "local", "logout", "printf", "pwd", "read", "readonly",
    "return", "select", "set", "shift", "source", "test", "then", "time", "times", "trap", "type",
    "typeset", "ulimit", "umask",
];

/// The file of a program's name, looked up in the directories of `search`.
pub(super) fn find(name: &OsStr, search: Option<&OsStr>) -> Option<PathBuf> {
    membound_launch::find(name, search).ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn find_program(name: &OsStr) -> Option<PathBuf> {
        (name != "none").then(|| Path::new("/bin").join(name))
    }

    fn words(line: &str) -> Option<Vec<String>> {
        match parse(line.as_bytes(), &find_program)
            .unwrap()
            .pop()?
            .execution
        {
            Execution::Direct { words, .. } => Some(
                words
                    .into_iter()
                    .map(|it| it.into_string().unwrap())
                    .collect(),
            ),
            Execution::Shell => None,
        }
    }

    #[test]
    fn plain_words_need_no_shell() {
        for (line, expected) in [
            ("gzip -9 a", vec!["gzip", "-9", "a"]),
            ("gzip  'a b'\t\"c d\"", vec!["gzip", "a b", "c d"]),
            ("awk '{print $1}' f", vec!["awk", "{print $1}", "f"]),
            ("cc -DA=1 a.c", vec!["cc", "-DA=1", "a.c"]),
            ("sort '' x\"y\"z", vec!["sort", "", "xyz"]),
        ] {
            assert_eq!(words(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn shell_syntax_is_passed_to_a_shell() {
        for line in [
            "a | b",
            "a > b",
            "a; b",
            "a &",
            "a *",
            "a ?",
            "a $B",
            "a `b`",
            "a \"$B\"",
            "A=1 a",
            "cd /",
            "exit 3",
            "echo a",
            "none",
            "a 'b",
            "a \"b",
            "a \\ b",
            "a # b",
            "a ~",
            "(a)",
            "{ a; }",
            "! a",
            "a [b]",
            "''",
            "a \"b\\c\"",
        ] {
            assert_eq!(words(line), None, "{line}");
        }
    }

    #[test]
    fn commands_are_numbered_without_empty_lines_and_comments() {
        let listed = parse(b"\n# one\n  a 1 \r\n\n\tb\n#\nc", &find_program).unwrap();
        let lines: Vec<_> = listed
            .iter()
            .map(|it| (it.number, it.line.to_str().unwrap()))
            .collect();
        assert_eq!(lines, [(1, "a 1"), (2, "b"), (3, "c")]);
        assert_eq!(parse(b"", &find_program).unwrap(), []);
        let error = parse(b"a\nb\0c\n", &find_program).unwrap_err();
        assert!(error.starts_with("line 2 "), "{error}");
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let listed = parse(b"a \xff", &find_program).unwrap();
        let Execution::Direct { words, .. } = &listed[0].execution else {
            panic!("{listed:?}")
        };
        assert_eq!(words[1].as_bytes(), b"\xff");
        let search = std::env::var_os("PATH");
        let found = find(OsStr::new("sh"), search.as_deref());
        assert_eq!(found.unwrap().file_name().unwrap(), "sh");
    }
}
