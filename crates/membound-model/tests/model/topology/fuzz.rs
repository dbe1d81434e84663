//! Text that is no topology, and sizes that make no sense.

use membound_model::hierarchy::{bundled, parse_topology, published, validate, with_sizes};
use proptest::prelude::*;

use super::{SOUND, origin, sound};

/// Checks that a rejected text gives an error of one line, with file and position.
fn refused_in_one_line(text: &str) -> Result<(), TestCaseError> {
    if let Err(error) = parse_topology("f.toml", text) {
        let line = error.to_string();
        prop_assert!(
            !line.contains(['\n', '\r', '\u{2028}', '\u{2029}', '\u{85}']),
            "{line:?}"
        );
        let mut parts = line
            .strip_prefix("f.toml:")
            .unwrap_or_default()
            .splitn(3, ':');
        let mut place = || parts.next().and_then(|number| number.parse::<usize>().ok());
        let lines = text.split('\n').count();
        prop_assert!(
            place().is_some_and(|line| line >= 1 && line <= lines),
            "{line:?}"
        );
        prop_assert!(place().is_some_and(|column| column >= 1), "{line:?}");
    }
    Ok(())
}

/// Words that occur in topologies, and some that must not.
fn word() -> impl Strategy<Value = String> {
    let words: Vec<&str> = SOUND.split_whitespace().collect();
    prop_oneof![
        4 => proptest::sample::select(words).prop_map(str::to_owned),
        1 => prop_oneof![
            Just("-1"), Just("0"), Just("1e999"), Just("nan"), Just("\"\\n\""), Just("{}"),
            Just("[["), Just("]]"), Just("\"99999999999999999999\""), Just("9223372036854775807"),
            Just("\n"), Just("\"\"\"a\nb\"\"\""), Just("\u{2028}"),
        ]
        .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        refused_in_one_line(&text)?;
    }

    #[test]
    fn shuffled_words_never_panic(words in proptest::collection::vec((word(), 0..2_usize), 0..40)) {
        let text: String = words
            .iter()
            .flat_map(|(word, line)| [&**word, [" ", "\n"][*line]])
            .collect();
        refused_in_one_line(&text)?;
    }

    #[test]
    fn a_word_changed_never_panics(at in any::<proptest::sample::Index>(), put in word()) {
        let starts: Vec<usize> = SOUND
            .match_indices([' ', '\n'])
            .map(|(start, _)| start + 1)
            .collect();
        let start = starts[at.index(starts.len())];
        let rest = &SOUND[start..];
        let end = rest.find([' ', '\n']).unwrap_or(rest.len());
        refused_in_one_line(&format!("{}{put}{}", &SOUND[..start], &rest[end..]))?;
    }

    #[test]
    fn a_cut_or_overwritten_file_never_panics(
        text in proptest::sample::select(vec![
            SOUND,
            include_str!("../../../topologies/origin2000.toml"),
            include_str!("../../../topologies/generic.toml"),
        ]),
        from in any::<proptest::sample::Index>(),
        length in 0..30_usize,
        put in "\\PC{0,6}",
    ) {
        let from = from.index(text.len());
        let to = (from + length).min(text.len());
        let bytes = [&text.as_bytes()[..from], put.as_bytes(), &text.as_bytes()[to..]].concat();
        refused_in_one_line(&String::from_utf8_lossy(&bytes))?;
    }

    /// Any accepted topology can be used: nothing later panics or returns NaN.
    #[test]
    fn any_sizes_are_accepted_or_refused(sizes in proptest::collection::vec(any::<u64>(), 0..9)) {
        for topology in [origin(), bundled("generic").unwrap(), sound()] {
            match with_sizes(&topology, &sizes) {
                Ok((sized, _)) => {
                    prop_assert!(validate(&sized).is_ok());
                    let (_, levels) = published(&sized);
                    let reaches: Vec<u64> = levels.iter().filter_map(|level| level.reach_bytes).collect();
                    prop_assert!(reaches.is_sorted(), "{reaches:?}");
                }
                Err(error) => prop_assert!(!error.to_string().contains('\n')),
            }
        }
    }
}
