//! Enums that are sent as their numbers.

/// Defines an enum, and how a number is read back as one of its values.
macro_rules! numbered {
    (
        $(#[$about:meta])*
        pub enum $name:ident {
            $($(#[$meaning:meta])* $value:ident = $number:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$meaning])* $value = $number,)+
        }

        impl $name {
            /// The value with this number.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::{Action, Event, Refusal, ScavengerProcessState, TextMode};

    #[test]
    fn numbers_are_read_back() {
        for number in 0..100 {
            let read = [
                Event::from_number(number).map(|it| it as u32),
                Action::from_number(number).map(|it| it as u32),
                Refusal::from_number(number).map(|it| it as u32),
                TextMode::from_number(number).map(|it| it as u32),
                ScavengerProcessState::from_number(number).map(|it| it as u32),
            ];
            for number_read in read.into_iter().flatten() {
                assert_eq!(number_read, number);
            }
        }
        assert_eq!(Event::from_number(4), Some(Event::Doorbell));
        assert_eq!(Event::from_number(5), None);
        assert_eq!(Action::from_number(21), Some(Action::Hold));
        assert_eq!(Refusal::from_number(99), None);
    }
}
