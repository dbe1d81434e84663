//! How values are stored in columns: integers of any width as SQLite's signed 64 bits (`u64` with the same
//! bits), variants by name as text, lists as JSON, `None` as NULL.

use std::str::FromStr;

use membound_types::{AccessSampler, ObjectClass, Operation, ServedBy, Snoop, Translation};
use rusqlite::types::FromSqlError;
use rusqlite::{Row, Statement};

/// A type that fits into one column.
pub(crate) trait Value: Sized {
    /// The column's type in SQL.
    const SQL: &'static str;

    /// Binds it to parameter `at`, from 1.
    fn bind(&self, statement: &mut Statement<'_>, at: usize) -> rusqlite::Result<()>;

    /// Reads it from column `at`, from 0.
    fn take(row: &Row<'_>, at: usize) -> rusqlite::Result<Self>;
}

macro_rules! narrow {
    ($($Type:ty),+) => {$(
        impl Value for $Type {
            const SQL: &'static str = "INTEGER";

            fn bind(&self, statement: &mut Statement<'_>, at: usize) -> rusqlite::Result<()> {
                statement.raw_bind_parameter(at, i64::from(*self))
            }

            fn take(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
                let found = integer(row, at)?;
                Self::try_from(found).map_err(|_| foreign(FromSqlError::OutOfRange(found)))
            }
        }
    )+};
}

narrow!(u8, u16, u32, i32);

/// Stores enums under the names of their values.
macro_rules! names {
    ($($Type:ty),+) => {$(
        impl $crate::value::Value for $Type {
            const SQL: &'static str = "TEXT";

            fn bind(
                &self,
                statement: &mut rusqlite::Statement<'_>,
                at: usize,
            ) -> rusqlite::Result<()> {
                statement.raw_bind_parameter(at, self.name())
            }

            fn take(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<Self> {
                $crate::value::parsed(row, at)
            }
        }
    )+};
}

pub(crate) use names;

/// The value whose name is in column `at`.
pub(crate) fn parsed<T: FromStr>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    let name = row.get_ref(at)?.as_str().map_err(foreign)?;
    name.parse().map_err(|_| foreign(FromSqlError::InvalidType))
}

names!(
    AccessSampler,
    ObjectClass,
    Operation,
    ServedBy,
    Snoop,
    Translation
);

impl Value for u64 {
    const SQL: &'static str = "INTEGER";

    fn bind(&self, statement: &mut Statement<'_>, at: usize) -> rusqlite::Result<()> {
        statement.raw_bind_parameter(at, self.cast_signed())
    }

    fn take(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
        integer(row, at).map(i64::cast_unsigned)
    }
}

impl Value for bool {
    const SQL: &'static str = "INTEGER";

    fn bind(&self, statement: &mut Statement<'_>, at: usize) -> rusqlite::Result<()> {
        statement.raw_bind_parameter(at, i64::from(*self))
    }

    fn take(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
        Ok(integer(row, at)? != 0)
    }
}

impl Value for f64 {
    const SQL: &'static str = "REAL";

    fn bind(&self, statement: &mut Statement<'_>, at: usize) -> rusqlite::Result<()> {
        statement.raw_bind_parameter(at, *self)
    }

    fn take(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
        row.get_ref(at)?.as_f64().map_err(foreign)
    }
}

impl Value for String {
    const SQL: &'static str = "TEXT";

    fn bind(&self, statement: &mut Statement<'_>, at: usize) -> rusqlite::Result<()> {
        statement.raw_bind_parameter(at, self.as_str())
    }

    fn take(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
        Ok(row.get_ref(at)?.as_str().map_err(foreign)?.to_owned())
    }
}

macro_rules! lists {
    ($($Type:ty),+) => {$(
        impl Value for Vec<$Type> {
            const SQL: &'static str = "TEXT";

            fn bind(&self, statement: &mut Statement<'_>, at: usize) -> rusqlite::Result<()> {
                let text = serde_json::to_string(self).map_err(|error| foreign(other(error)))?;
                statement.raw_bind_parameter(at, text)
            }

            fn take(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
                let text = row.get_ref(at)?.as_str().map_err(foreign)?;
                serde_json::from_str(text).map_err(|error| foreign(other(error)))
            }
        }
    )+};
}

lists!(String, u16, u64);

impl Value for Vec<u8> {
    const SQL: &'static str = "BLOB";

    fn bind(&self, statement: &mut Statement<'_>, at: usize) -> rusqlite::Result<()> {
        statement.raw_bind_parameter(at, self.as_slice())
    }

    fn take(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
        Ok(row.get_ref(at)?.as_blob().map_err(foreign)?.to_vec())
    }
}

impl<T: Value> Value for Option<T> {
    const SQL: &'static str = T::SQL;

    fn bind(&self, statement: &mut Statement<'_>, at: usize) -> rusqlite::Result<()> {
        match self {
            Some(value) => value.bind(statement, at),
            None => statement.raw_bind_parameter(at, rusqlite::types::Null),
        }
    }

    fn take(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
        match row.get_ref(at)? {
            rusqlite::types::ValueRef::Null => Ok(None),
            _ => T::take(row, at).map(Some),
        }
    }
}

fn integer(row: &Row<'_>, at: usize) -> rusqlite::Result<i64> {
    row.get_ref(at)?.as_i64().map_err(foreign)
}

/// The error for a value that no version of this crate writes.
fn foreign(error: FromSqlError) -> rusqlite::Error {
    error.into()
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> FromSqlError {
    FromSqlError::Other(Box::new(error))
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::Serialize;

    use super::*;
    use crate::{ModuleKind, SiteKind, TimerKind};

    /// The file has the same words as serde, so that exports and queries agree.
    #[track_caller]
    fn check<T: Value + Serialize + PartialEq + Debug>(all: &[T]) {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        for value in all {
            let mut statement = connection.prepare("SELECT ?1").unwrap();
            value.bind(&mut statement, 1).unwrap();
            let mut rows = statement.raw_query();
            let row = rows.next().unwrap().unwrap();
            assert_eq!(T::take(row, 0).unwrap(), *value);
            let word: String = row.get(0).unwrap();
            assert_eq!(serde_json::to_value(value).unwrap(), word.as_str());
        }
    }

    #[test]
    fn variants_have_the_words_of_serde() {
        check(&TimerKind::ALL);
        check(&ModuleKind::ALL);
        check(&SiteKind::ALL);
        check(&ObjectClass::ALL);
        check(&AccessSampler::ALL);
        check(&Operation::ALL);
        check(&ServedBy::ALL);
        check(&Snoop::ALL);
        check(&Translation::ALL);
    }
}
