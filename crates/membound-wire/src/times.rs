//! Histogram classes of times: every doubling is divided into equal parts, and below the first divided one
//! each nanosecond has a class of its own.

/// Classes of [`crate::ControlPage::times`]: eight to a doubling, in nanoseconds.
pub const TIME_CLASSES: usize = 256;
/// Base-2 logarithm of the classes of a doubling there.
const TIME_PARTS: u32 = 3;

/// Classes of [`crate::RequestTimes::classes`]: 128 to a doubling, so that none is wider than 1 % of its
/// lower bound. The last one ends at 2⁴⁰ ns, and also counts longer durations.
pub const REQUEST_CLASSES: usize = 256 + 32 * 128;
/// Base-2 logarithm of the classes of a doubling there.
const REQUEST_PARTS: u32 = 7;

/// The class of a time in nanoseconds, below [`TIME_CLASSES`]. Below 16 ns each nanosecond has its own.
#[must_use]
pub const fn time_class(ns: u64) -> usize {
    least(class_of(ns, TIME_PARTS), TIME_CLASSES - 1)
}

/// Lower bound of a class, in nanoseconds.
#[must_use]
pub const fn class_begin(class: usize) -> u64 {
    begin_of(class, TIME_PARTS)
}

/// The class of a request's duration in nanoseconds, below [`REQUEST_CLASSES`].
#[must_use]
pub const fn request_class(ns: u64) -> usize {
    least(class_of(ns, REQUEST_PARTS), REQUEST_CLASSES - 1)
}

/// Lower bound of a class of requests, in nanoseconds.
#[must_use]
pub const fn request_class_begin(class: usize) -> u64 {
    begin_of(class, REQUEST_PARTS)
}

const fn least(one: usize, other: usize) -> usize {
    if one < other { one } else { other }
}

/// The class of a time, where a doubling has two to the power of `parts` classes.
const fn class_of(ns: u64, parts: u32) -> usize {
    let single = 2_u64 << parts;
    if ns < single {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros();
    let part = (ns >> (exponent - parts)) & ((1 << parts) - 1);
    single as usize + (((exponent - parts - 1) as usize) << parts) + part as usize
}

/// Lower bound of a class of [`class_of`].
const fn begin_of(class: usize, parts: u32) -> u64 {
    let single = 2_usize << parts;
    if class < single {
        return class as u64;
    }
    let (doubling, part) = (
        (class - single) >> parts,
        (class - single) & ((1 << parts) - 1),
    );
    ((1 << parts) + part as u64) << (doubling + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that classes cover every time and that none is wider than a part in `parts`.
    fn check(class_of: fn(u64) -> usize, begin: fn(usize) -> u64, classes: usize, parts: u64) {
        for ns in (0..5000).chain([1 << 20, (1 << 20) + 7, 1 << 33]) {
            let class = class_of(ns);
            assert!(begin(class) <= ns, "{ns}");
            if class + 1 < classes {
                assert!(ns < begin(class + 1), "{ns}");
                assert!(
                    begin(class + 1) * parts <= begin(class) * (parts + 1) + parts,
                    "{ns}"
                );
            }
        }
        assert_eq!(class_of(u64::MAX), classes - 1);
    }

    #[test]
    fn every_time_has_a_class_that_begins_at_or_before_it() {
        check(time_class, class_begin, TIME_CLASSES, 8);
        assert_eq!(time_class(15), 15);
        assert_eq!(
            (time_class(16), time_class(17), time_class(18)),
            (16, 16, 17)
        );
    }

    #[test]
    fn classes_of_requests_are_narrower_than_one_percent() {
        check(request_class, request_class_begin, REQUEST_CLASSES, 128);
        assert_eq!(request_class_begin(REQUEST_CLASSES), 1 << 40);
        assert_eq!(request_class(2_000_000), request_class(2_007_000));
        assert_ne!(request_class(2_000_000), request_class(2_020_000));
    }
}
