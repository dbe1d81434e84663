//! Texts of the DWARF library's errors, for notes.

/// Messages of the library begin with a capital letter.
pub(super) fn error_text(error: gimli::Error) -> String {
    let mut text = error.to_string();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    text.replace(['\n', '\r'], " ")
}
