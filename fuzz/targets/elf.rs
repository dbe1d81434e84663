//! Any file as an executable: functions and blocks that keep their promises, or an error
//! in one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use membound_rewrite::code::{Function, ImageFacts, Tables};
use membound_rewrite::image::Image;

mod code;

fuzz_target!(|bytes: &[u8]| {
    let image = match Image::parse(bytes) {
        Ok(image) => image,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains(['\n', '\r']), "{message:?}");
            return;
        }
    };
    let functions = image.functions();
    for pair in functions.windows(2) {
        assert!(
            pair[0].range.end <= pair[1].range.start,
            "overlapping functions"
        );
    }
    let span = image.span();
    for function in functions {
        assert!(
            function.range.start < function.range.end,
            "an empty function"
        );
        assert!(span.start <= function.range.start && function.range.end <= span.end);
        assert!(
            image.bytes(function.range.clone()).is_some(),
            "a function without bytes"
        );
    }
    let _ = (
        image.identity(),
        image.convention(),
        image.interpreter(),
        image.kind(),
    );
    for tables in [Tables::Resolve, Tables::Ignore] {
        let knowledge = ImageFacts::gather(&image, tables);
        for index in 0..functions.len() {
            code::check_function(&Function::decode(&image, &knowledge, index));
        }
    }
});
