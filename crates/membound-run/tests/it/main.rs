//! Run files: what is written comes back, whatever happens to the writer or the file.

mod arbitrary;
mod damage;
mod files;
mod killed;
mod page;
mod room;
mod round_trip;
