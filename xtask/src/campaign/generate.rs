//! Inputs that are too large to keep: generated here, the same in every run.

use std::fmt::Write as _;

/// A linear congruential generator; its numbers need only look mixed.
struct Numbers(u32);

impl Numbers {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % limit
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(u32::try_from(words.len()).expect("a short list")) as usize]
    }
}

/// A C file of about `lines` lines: functions with loops, switches, structures, floating
/// point and calls among each other, and a `main` that prints what they compute.
pub(crate) fn c_source(lines: usize) -> String {
    let mut numbers = Numbers(7);
    let mut text = String::from(
        "#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\n\n\
         struct node { struct node *next; int64_t value; double weight; uint8_t tag[16]; };\n\
         static struct node nodes[256];\n\
         static uint32_t table[1024];\n\
         static char text[4096];\n\n",
    );
    let mut functions = 0;
    while text.lines().count() < lines {
        // Counting all lines for every function would be quadratic.
        for _ in 0..20 {
            function(&mut text, &mut numbers, functions);
            functions += 1;
        }
    }
    text.push_str("int main(void)\n{\n    uint64_t sum = 0;\n");
    text.push_str("    for (int i = 0; i < 256; i++) {\n");
    text.push_str("        nodes[i].next = &nodes[(i * 7 + 1) & 255];\n");
    text.push_str("        nodes[i].value = i * 3;\n        nodes[i].weight = i * 0.25;\n    }\n");
    for index in 0..functions {
        writeln!(
            text,
            "    sum = sum * 31 + (uint64_t)f{index}(sum & 15, 3);"
        )
        .expect("text grows");
    }
    text.push_str("    printf(\"%016llx\\n\", (unsigned long long)sum);\n    return 0;\n}\n");
    text
}

/// Adds the function of this number, which may call those before it.
fn function(text: &mut String, numbers: &mut Numbers, index: usize) {
    let mut line = |words: std::fmt::Arguments<'_>| {
        writeln!(text, "{words}").expect("text grows");
    };
    line(format_args!(
        "static __attribute__((noinline)) int64_t f{index}(int64_t a, int64_t b)\n{{"
    ));
    line(format_args!(
        "    int64_t x = a + {}, y = b - {};\n    double d = {}.5;",
        numbers.below(100),
        numbers.below(100),
        numbers.below(50)
    ));
    for _ in 0..2 + numbers.below(4) {
        match numbers.below(6) {
            0 => line(format_args!(
                "    for (int i = 0; i < {}; i++) {{\n        x {} table[(x + i) & 1023];\n        \
                 table[i & 1023] {} (uint32_t)y;\n    }}",
                2 + numbers.below(9),
                numbers.pick(&["+=", "^=", "-="]),
                numbers.pick(&["+=", "^=", "|="]),
            )),
            1 => line(format_args!(
                "    for (struct node *n = &nodes[x & 255]; y > {}; n = n->next, y--) {{\n        \
                 x += n->value;\n        d += n->weight;\n        n->tag[y & 15]++;\n    }}",
                numbers.below(3)
            )),
            2 => {
                line(format_args!("    switch (x & 15) {{"));
                for case in 0..6 + numbers.below(8) {
                    line(format_args!(
                        "    case {case}: y = y {} {} {} x; break;",
                        numbers.pick(&["+", "*", "^", "-"]),
                        1 + numbers.below(1000),
                        numbers.pick(&["+", "^", "-"]),
                    ));
                }
                line(format_args!("    default: y++;\n    }}"));
            }
            3 if index > 0 => {
                let callee =
                    index - 1 - numbers.below(u32::try_from(index.min(9)).expect("small")) as usize;
                line(format_args!(
                    "    if (((x ^ y) & {}) == 0 && b > 0)\n        x += f{callee}(y & 31, b - 1);",
                    [7, 15, 31][numbers.below(3) as usize]
                ));
            }
            4 => line(format_args!(
                "    memcpy(text + (x & 1023), text + 2048 + (y & 1023), {});\n    \
                 text[(x + y) & 4095] = (char)x;",
                1 + numbers.below(64)
            )),
            _ => line(format_args!(
                "    d = d * {}.0 / (1.0 + (double)(x & 255));\n    x {} (int64_t)d;\n    \
                 y = (y << {}) ^ (x >> {});",
                1 + numbers.below(9),
                numbers.pick(&["+=", "-=", "^="]),
                1 + numbers.below(7),
                1 + numbers.below(7),
            )),
        }
    }
    line(format_args!("    return x ^ y;\n}}\n"));
}

/// Lines of words and numbers for programs that sort and count.
pub(crate) fn words(lines: usize) -> String {
    let mut numbers = Numbers(99);
    let syllables = [
        "ba", "ke", "li", "mo", "nu", "pra", "sto", "ty", "va", "xe", "zi", "un", "Qu",
    ];
    let mut text = String::new();
    for line in 0..lines {
        for _ in 0..2 + numbers.below(5) {
            for _ in 0..1 + numbers.below(3) {
                text.push_str(numbers.pick(&syllables));
            }
            text.push(' ');
        }
        writeln!(text, "{line} {}", numbers.below(100_000)).expect("text grows");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_as_long_as_asked_for_and_repeat() {
        let source = c_source(3000);
        assert!(source.lines().count() > 3000 && source.lines().count() < 4500);
        assert_eq!(source, c_source(3000));
        assert_eq!(words(500).lines().count(), 500);
    }
}
