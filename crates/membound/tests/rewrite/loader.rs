//! Objects that are opened and closed while the program runs.

use std::path::PathBuf;

use crate::build::{Compiler, build};
use crate::case::Case;

/// `loader.c` with a case's name and the path of its object.
fn loader(name: &str) -> Option<Case> {
    let plugin = build(Compiler::Gcc, "plugin.c", "-O2 -fPIC -shared")?;
    with(name, plugin)
}

fn with(name: &str, plugin: PathBuf) -> Option<Case> {
    let program = build(Compiler::Gcc, "loader.c", "-O2 -rdynamic")?;
    Some(Case::new(program, name).arg(plugin))
}

#[test]
fn an_object_is_opened_and_closed() {
    if let Some(case) = loader("once") {
        case.also("plugin").check();
    }
}

#[test]
fn an_object_is_opened_and_closed_a_thousand_times() {
    if let Some(case) = loader("thousand") {
        case.also("plugin").check();
    }
}

#[test]
fn many_objects_are_open_at_once() {
    if let Some(case) = loader("copies") {
        case.also("copy-").check();
    }
}

#[test]
fn threads_open_objects() {
    if let Some(case) = loader("threads") {
        case.also("plugin").check();
    }
}

#[test]
fn threads_open_objects_while_patches_come_and_go() {
    if let Some(case) = loader("threads") {
        case.restless().check();
    }
}

#[test]
fn an_object_has_data_for_each_thread() {
    if let Some(case) = loader("thread-local") {
        case.also("plugin").check();
    }
}

/// With the local-dynamic access that TLS descriptors replace.
#[test]
fn an_object_has_data_behind_descriptors() {
    let Some(plugin) = build(
        Compiler::Gcc,
        "plugin.c",
        "-O2 -fPIC -shared -mtls-dialect=gnu2",
    ) else {
        return;
    };
    if let Some(case) = with("thread-local", plugin) {
        case.also("plugin").check();
    }
}

#[test]
fn an_object_has_a_namespace_of_its_own() {
    if let Some(case) = loader("namespace") {
        case.check();
    }
}

#[test]
fn signals_arrive_while_objects_come_and_go() {
    if let Some(case) = loader("signals") {
        case.also("plugin").check();
    }
}

#[test]
fn a_forked_process_opens_objects() {
    if let Some(case) = loader("forked") {
        case.also("plugin").check();
    }
}
