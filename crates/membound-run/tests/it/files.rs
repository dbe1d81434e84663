//! Files that are not runs, and paths where no run can be created.

use std::fs;
use std::path::Path;

use membound_run::{Error, Meta, RunData, Writer, write};

use crate::arbitrary::MACHINE;

/// The message for a file with this content, after its name.
fn said_of(content: &[u8]) -> String {
    let home = tempfile::tempdir().expect("a directory can be made");
    let path = home.path().join("file");
    fs::write(&path, content).expect("it can be written");
    said(&path)
}

fn said(path: &Path) -> String {
    let error = RunData::open(path).expect_err("it is no run");
    let text = error.to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    let (_, after) = text
        .split_once(path.to_str().expect("a name of text"))
        .expect("it names the file");
    after.to_owned()
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let text = " is not a run: a run is what `membound profile -o` writes";
    assert_eq!(said_of(b"hello"), text);
    assert_eq!(said_of(b"{ not json"), text);
    assert_eq!(said_of(b"SQLite format 3\0 and then rubbish"), text);
    assert_eq!(
        said_of(b""),
        " is empty: the recording that was to write it has not begun"
    );
    assert_eq!(
        said_of(MACHINE.as_bytes()),
        " is a JSON document (machine), not a run: a run is what `membound profile -o` writes"
    );
    assert_eq!(
        said_of(b"\n {\"a\": 1}"),
        " is a JSON document (of no known kind), not a run: a run is what `membound profile -o` \
         writes"
    );
    assert!(said(Path::new("/nowhere/at all")).starts_with(": No such file"));
    let home = tempfile::tempdir().unwrap();
    assert!(said(home.path()).contains("directory"));
}

#[test]
fn other_databases_and_layouts_are_told_apart() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("file");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE run (a)").unwrap();
    drop(connection);
    assert_eq!(
        said(&path),
        " is an SQLite database of another program, not a run that `membound profile -o` wrote"
    );
    write(&path, &RunData::default()).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    assert_eq!(
        said(&path),
        " has layout 99, and this membound reads layout 1: record it again, or read it with the \
         version that wrote it"
    );
}

#[test]
fn places_where_nothing_can_be_written_are_said() {
    let home = tempfile::tempdir().unwrap();
    let create = |path: &Path| Writer::create(path, &Meta::default()).unwrap_err();
    let missing = home.path().join("no").join("run");
    let error = create(&missing);
    assert!(matches!(error, Error::Create { .. }), "{error}");
    assert!(error.to_string().contains("No such file"), "{error}");
    for path in [home.path(), Path::new("/dev/null")] {
        let error = create(path);
        assert!(matches!(error, Error::NotAFile { .. }), "{error}");
    }
    assert!(matches!(create(Path::new("")), Error::Create { .. }));
}

#[test]
fn names_that_sqlite_has_a_meaning_for_are_names() {
    let home = tempfile::tempdir().unwrap();
    for name in [":memory:", "file:x?mode=ro", "a b'c\"d", "ü.run"] {
        let path = home.path().join(name);
        write(&path, &RunData::default()).unwrap();
        assert!(path.is_file(), "{name}");
        assert_eq!(RunData::open(&path).unwrap(), RunData::default());
    }
}

#[test]
fn a_journal_of_something_else_is_not_applied() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    fs::write(&path, "what stood here").unwrap();
    fs::write(home.path().join("run-journal"), "a journal").unwrap();
    write(&path, &RunData::default()).unwrap();
    assert_eq!(RunData::open(&path).unwrap(), RunData::default());
    assert!(
        !home.path().join("run-journal").exists(),
        "one file is enough"
    );
}
