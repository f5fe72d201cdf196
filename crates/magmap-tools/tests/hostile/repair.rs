//! Checksums set right, so that a changed input reaches what they guard.

use sha2::{Digest, Sha256};

/// The number at this place, if there is one.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    number(bytes, at).map(|bytes| u32::from_le_bytes(bytes) as usize)
}

/// Takes the checksums of MCAP's chunks away, which is allowed.
pub(super) fn mcap(bytes: &mut [u8]) {
    const CHUNK: u8 = 6;
    let mut rest = bytes.get_mut(8..).unwrap_or_default();
    while let Some((&mut opcode, content)) = rest.split_first_mut()
        && let Some((length, content)) = content.split_first_chunk_mut()
    {
        if opcode == CHUNK
            && let Some(checksum) = content.get_mut(24..28)
        {
            checksum.fill(0);
        }
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        rest = content.get_mut(length..).unwrap_or_default();
    }
}

/// Computes the checksum of every record of a journal whose length fits.
pub(super) fn journal(bytes: &mut [u8]) {
    let mut at = 12;
    while let Some(length) = u32_at(bytes, at) {
        let Some(end) = (at + 16).checked_add(length).filter(|&end| end <= bytes.len()) else { break };
        let checksum = crc32fast::hash(&bytes[at + 8..end]);
        bytes[at + 4..at + 8].copy_from_slice(&checksum.to_le_bytes());
        at = end;
    }
}

/// Computes the checksum of a checkpoint from the files that lie one behind the other in the archive.
pub(super) fn checkpoint(bytes: &mut [u8]) {
    const HEADER: usize = 30;
    let mut digest = Sha256::new();
    let mut at = 0;
    while bytes.get(at..).is_some_and(|rest| rest.starts_with(b"PK\x03\x04")) {
        let short = |at| number(bytes, at).map(|bytes| u16::from_le_bytes(bytes) as usize);
        let sizes = (u32_at(bytes, at + 18), short(at + 26), short(at + 28));
        let (Some(length), Some(name), Some(extra)) = sizes else { return };
        let start = at + HEADER + name + extra;
        let (Some(name), Some(content)) =
            (bytes.get(at + HEADER..at + HEADER + name), bytes.get(start..start + length))
        else {
            return;
        };
        if name == b"checksum.npy" {
            let text = format!("{:x}", digest.finalize());
            let characters: Vec<u8> = text.chars().flat_map(|character| u32::from(character).to_le_bytes()).collect();
            if let Some(begin) = (start + length).checked_sub(characters.len()).filter(|&begin| begin >= start) {
                bytes[begin..start + length].copy_from_slice(&characters);
            }
            return;
        }
        digest.update(name);
        digest.update(content);
        at = start + length;
    }
}
