//! Files that somebody made to do harm, or that a disk spoiled.

#[path = "common/allocator.rs"]
mod allocator;
mod hostile;

use std::fs;
use std::path::Path;

use hostile::{READERS, Reader};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Inputs per reader; `cargo fuzz` tries millions, see `docs/hostile-input.md`.
const INPUTS: usize = 1500;

#[test]
fn changed_files_never_panic_and_take_no_more_memory_than_they_may() {
    for reader in &READERS {
        let folder = hostile::folder();
        let seeds = (reader.seeds)();
        seeds.iter().for_each(|seed| (reader.read)(folder.path(), seed));
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut most = (0, 0);
        let started = std::time::Instant::now();
        for _ in 0..INPUTS {
            let input = changed(reader, &seeds, &mut random);
            let peak = allocator::peak(|| (reader.read)(folder.path(), &input));
            most = most.max((peak, input.len()));
            let most = reader.allowed_memory(input.len());
            assert!(peak <= most, "{}: {peak} bytes for an input of {}, more than {most}", reader.name, input.len());
        }
        eprintln!(
            "{} {:?} {most:?} sizes {:?}",
            reader.name,
            started.elapsed(),
            seeds.iter().map(Vec::len).collect::<Vec<_>>()
        );
    }
}

/// A seed with a few changes.
fn changed(reader: &Reader, seeds: &[Vec<u8>], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = seeds[random.random_range(0..seeds.len())].clone();
    for _ in 0..random.random_range(1..8) {
        change(&mut bytes, random);
    }
    if random.random_range(0..8) > 0 {
        (reader.repair)(&mut bytes);
    }
    bytes
}

/// Flips a bit, blows a number up, cuts the end off, or repeats, removes or overwrites a piece.
fn change(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    if bytes.is_empty() {
        return bytes.push(random.next_u32() as u8);
    }
    let at = random.random_range(0..bytes.len());
    let end = (at + random.random_range(1..64)).min(bytes.len());
    match random.random_range(0..8) {
        0 | 1 => bytes[at] ^= 1 << random.random_range(0..8),
        2 => bytes[at] = random.next_u32() as u8,
        3 => {
            let number: u64 = [0, 1, 0xff, 0xffff, 1 << 20, 1 << 30, u32::MAX.into(), 1 << 40, u64::MAX >> 1, u64::MAX]
                [random.random_range(0..10)];
            let width = [2, 4, 8][random.random_range(0..3)];
            let number = if random.random() { number.to_le_bytes() } else { number.to_be_bytes() };
            bytes[at..].iter_mut().zip(&number[..width]).for_each(|(byte, new)| *byte = *new);
        }
        4 => bytes.truncate(at),
        5 => {
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        6 => drop(bytes.drain(at..end)),
        _ => {
            let from = random.random_range(0..bytes.len());
            let piece: Vec<u8> = bytes[from..].iter().take(end - at).copied().collect();
            bytes[at..at + piece.len().min(end - at)].copy_from_slice(&piece[..piece.len().min(end - at)]);
        }
    }
}

#[test]
#[ignore = "writes the seeds and dictionaries of `cargo fuzz` into the folder that MAGMAP_FUZZ names"]
fn seeds_are_written() {
    let folder = std::env::var_os("MAGMAP_FUZZ").expect("MAGMAP_FUZZ should name a folder");
    for reader in &READERS {
        let seeds = Path::new(&folder).join("seeds").join(reader.name);
        fs::create_dir_all(&seeds).unwrap();
        for (index, seed) in (reader.seeds)().into_iter().enumerate() {
            fs::write(seeds.join(index.to_string()), seed).unwrap();
        }
        let quoted = |word: &String| {
            let bytes: String = word.bytes().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("\"{bytes}\"\n")
        };
        let words: String = (reader.words)().iter().map(quoted).collect();
        fs::write(Path::new(&folder).join(format!("{}.dict", reader.name)), words).unwrap();
    }
}
