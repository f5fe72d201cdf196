//! Tables that may contain anything.

use std::fs;

use magmap_evaluate::table::{Protocol, Table};
use proptest::prelude::*;
use proptest::sample::select;
use tempfile::tempdir;

/// A table of numbers; one that is large enough becomes a stream and its test.
fn read(bytes: &[u8]) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("table.csv");
    fs::write(&path, bytes).unwrap();
    let table = match Table::read(&path) {
        Ok(table) => table,
        Err(error) => return drop(error.to_string()),
    };
    let last = table.columns - 1;
    assert!(table.column(&(last + 1).to_string()).is_ok());
    let _ = table.column(&table.name(last)).map_err(|error| error.to_string());
    let protocol = Protocol { target: last, test_share: 0.3, batches: 2, seed: 1 };
    match protocol.check(&table) {
        Ok(()) => {
            let task = protocol.task(&table, 1);
            let learnt: usize = task.batches.iter().map(|batch| batch.targets.len()).sum();
            assert_eq!(learnt + task.test.targets.len(), table.rows());
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Pieces of tables, and of text that tables should not contain.
#[rustfmt::skip]
const PIECES: [&str; 19] = [
    "x,\"long, name\",y\n", "1,2,3\n", "4,5,6\n", "-1e0,.5,+2\n", "\u{feff}0.5,1\r\n", " \"1\" ,2\r\n", "\r\n", "\n", ",", ",,",
    "\"", "\0", "7", "nan", "inf", "-inf", "1e308", "1e-308", "-0",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_table_is_read_or_rejected_whatever_it_contains(pieces in prop::collection::vec(select(&PIECES[..]), 0..40), flips in prop::collection::vec(any::<(usize, u8)>(), 0..4)) {
        let mut bytes = pieces.concat().into_bytes();
        for (place, byte) in flips {
            let length = bytes.len().max(1);
            if let Some(old) = bytes.get_mut(place % length) {
                *old ^= byte;
            }
        }
        read(&bytes);
    }
}
