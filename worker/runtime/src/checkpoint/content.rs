//! Reads one regular file into the shape it has in a tree. Holds one chunk at a time.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fastcdc::v2020::StreamCDC;
use holdfast_protocol::message::Refusal;
use holdfast_protocol::tree::{CHUNKER, ChunkRef, HOLE_MIN, SEGMENTS_MAX, Segment};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::fault::{refusal, shown};
use super::harvest::{Harvest, Place, Side};

/// Where a file is, for reading it again and for messages.
pub(super) struct Where<'a> {
    pub(super) side: Side,
    pub(super) dir: u32,
    pub(super) name: &'a [u8],
    pub(super) path: &'a [u8],
}

/// The whole of a small file.
pub(super) fn whole(fd: BorrowedFd<'_>, size: usize, path: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut bytes = vec![0; size];
    let mut extent = Extent { fd, at: 0, end: size as u64 };
    extent.read_exact(&mut bytes).map_err(|error| changed(&error, path))?;
    Ok(bytes)
}

/// A larger file as chunks and holes; gives also how many bytes were read.
pub(super) fn segments(
    fd: BorrowedFd<'_>,
    size: u64,
    place: &Where<'_>,
    harvest: &mut Harvest,
) -> Result<(Vec<Segment>, u64), Refusal> {
    let name: Arc<[u8]> = place.name.into();
    let (mut found, mut read) = (Vec::new(), 0);
    for part in extents(fd, size).map_err(|errno| refusal(errno, "reading", place.path))? {
        let (start, end) = match part {
            Part::Hole(len) => {
                found.push(Segment::Hole(len));
                continue;
            }
            Part::Data(start, end) => (start, end),
        };
        let extent = Extent { fd, at: start, end };
        let (min, avg, max) = (CHUNKER.min as usize, CHUNKER.avg as usize, CHUNKER.max as usize);
        for chunk in StreamCDC::new(extent, min, avg, max) {
            let chunk = chunk.map_err(|error| changed(&error.into(), place.path))?;
            let (offset, len) = (start + chunk.offset, chunk.length as u32);
            let (side, dir) = (place.side, place.dir);
            let id = harvest.chunk(&chunk.data, || Place::Extent { side, dir, file: Arc::clone(&name), offset, len });
            found.push(Segment::Data(ChunkRef { id, len }));
            read += u64::from(len);
        }
        if found.len() > SEGMENTS_MAX {
            break;
        }
    }
    if found.len() > SEGMENTS_MAX {
        let text = format!("`{}` has over {SEGMENTS_MAX} pieces and holes", shown(place.path));
        return Err(Refusal::CaptureRejected(text));
    }
    Ok((found, read))
}

enum Part {
    Hole(u64),
    Data(u64, u64),
}

/// The file from start to end, holes shorter than `HOLE_MIN` counted as data.
fn extents(fd: BorrowedFd<'_>, size: u64) -> Result<Vec<Part>, Errno> {
    let mut parts = Vec::new();
    let (mut at, mut data_from) = (0, 0);
    while at < size {
        let data = match seek(fd, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            Err(Errno::NXIO) => size,
            Err(Errno::INVAL) => at,
            Err(errno) => return Err(errno),
        };
        if data - at >= HOLE_MIN {
            if at > data_from {
                parts.push(Part::Data(data_from, at));
            }
            parts.push(Part::Hole(data - at));
            data_from = data;
        }
        at = match seek(fd, SeekFrom::Hole(data)) {
            Ok(hole) if hole > data => hole.min(size),
            Ok(_) | Err(Errno::NXIO | Errno::INVAL) => size,
            Err(errno) => return Err(errno),
        };
    }
    if size > data_from {
        parts.push(Part::Data(data_from, size));
    }
    Ok(parts)
}

/// A part of a file as a stream; ending early is an error.
struct Extent<'a> {
    fd: BorrowedFd<'a>,
    at: u64,
    end: u64,
}

impl Read for Extent<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let want = buffer.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        loop {
            match rustix::io::pread(self.fd.as_fd(), &mut buffer[..want], self.at) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.at += n as u64;
                    return Ok(n);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn changed(error: &std::io::Error, path: &[u8]) -> Refusal {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            Refusal::Unsettled(format!("`{}` became shorter while it was saved", shown(path)))
        }
        _ => Refusal::Internal(format!("reading `{}`: {error}", shown(path))),
    }
}
