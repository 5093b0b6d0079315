//! Measures capture and restore of a generated tree: `cargo run --release -p holdfast-runtime --example checkpoint --
//! DIR FILES BYTES`. Writes below DIR (best on a tmpfs, as in a computer) and removes it at the end.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_protocol::CheckpointId;
use holdfast_protocol::message::{Answer, BATCH_BYTES, CaptureLimits, Captured};
use holdfast_protocol::object::{Object, ObjectId};
use holdfast_runtime::checkpoint::{Checkpointer, NoMappings, Nobody, Roots};

type Store = HashMap<ObjectId, Object>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, files, bytes] = args.as_slice() else { return Err("usage: checkpoint DIR FILES BYTES".into()) };
    let (files, bytes): (usize, usize) = (files.parse()?, bytes.parse()?);
    let (first, second) = (Path::new(dir).join("first"), Path::new(dir).join("second"));
    let (mut engine, mut store) = (engine(&first)?, Store::new());
    fill(&first.join("workspace"), files, bytes)?;
    let before = resident();
    report("capture", || capture(&mut engine, &mut store))?;
    report("capture, nothing changed", || capture(&mut engine, &mut store))?;
    std::fs::write(first.join("workspace/d3/s1/file-30"), vec![9; 4096])?;
    let manifest = report("capture, one file of 4 KiB changed", || capture(&mut engine, &mut store))?;
    println!("memory: {} MiB resident before, {} after (the objects of the store among them)", before, resident());

    let mut engine = self::engine(&second)?;
    let started = Instant::now();
    let (objects, sent) = restore(&mut engine, &store, manifest)?;
    println!("restore: {:?}, {objects} objects, {sent} bytes", started.elapsed());
    let (again, _, _) = capture(&mut engine, &mut store)?;
    assert_eq!((again.manifest, again.new_total), (manifest, 0), "the restored tree is the same");
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

fn engine(dir: &Path) -> std::io::Result<Checkpointer> {
    let roots = Roots { workspace: dir.join("workspace"), native: dir.join("native") };
    std::fs::create_dir_all(&roots.workspace)?;
    std::fs::create_dir_all(&roots.native)?;
    Ok(Checkpointer::new(roots, Box::new(Nobody), Box::new(NoMappings)))
}

/// Directories of a hundred files each, four in a directory.
fn fill(root: &Path, files: usize, bytes: usize) -> std::io::Result<()> {
    let (mut state, mut content) = (1u64, vec![0u8; 2 * bytes / files + 8]);
    for n in 0..files {
        let dir = root.join(format!("d{}/s{}", n / 400, n / 100 % 4));
        std::fs::create_dir_all(&dir)?;
        let size = bytes / files / 2 + n % 7 * bytes / files / 6;
        for word in content[..size].chunks_mut(16) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.iter_mut().zip(state.to_be_bytes()).for_each(|(byte, new)| *byte = new);
        }
        std::fs::write(dir.join(format!("file-{}", n % 100)), &content[..size])?;
    }
    Ok(())
}

type Done = Result<(Captured, usize, Duration), Box<dyn std::error::Error>>;

fn report(what: &str, work: impl FnOnce() -> Done) -> Result<ObjectId, Box<dyn std::error::Error>> {
    let (captured, sent, read_again) = work()?;
    let (stats, files) = (&captured.stats, captured.stats.files);
    println!(
        "{what}: {:?} for {files} files and {} bytes; {} new objects, {sent} bytes read again in {read_again:?}",
        Duration::from_micros(stats.read_us),
        stats.bytes,
        captured.new_total
    );
    Ok(captured.manifest)
}

fn capture(engine: &mut Checkpointer, store: &mut Store) -> Done {
    let captured = engine.capture(CheckpointId::generate(), &["home"], &CaptureLimits::default(), &[])?;
    let started = Instant::now();
    let mut ids: Vec<ObjectId> = Vec::new();
    while (ids.len() as u64) < captured.new_total {
        ids.extend(engine.capture_list(ids.len() as u64)?.iter().map(|new| new.id));
    }
    let (mut sent, mut next) = (0, 0);
    while next < ids.len() {
        for object in engine.capture_read(&ids[next..])? {
            next += 1;
            sent += object.bytes.len();
            store.insert(object.id, object);
        }
    }
    engine.capture_end();
    engine.touched();
    Ok((captured, sent, started.elapsed()))
}

fn restore(
    engine: &mut Checkpointer,
    store: &Store,
    manifest: ObjectId,
) -> Result<(usize, usize), Box<dyn std::error::Error>> {
    let mut answer = engine.restore_begin(CheckpointId::generate(), manifest)?;
    let (mut objects, mut sent) = (0, 0);
    loop {
        let Answer::RestoreNeed { ids, .. } = answer else { return Err("an unexpected answer".into()) };
        if ids.is_empty() {
            return Ok((objects, sent));
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for (id, _) in ids {
            let object = store.get(&id).ok_or("an object is missing")?;
            bytes += object.bytes.len();
            batch.push(object.clone());
            if bytes > BATCH_BYTES {
                break;
            }
        }
        (objects, sent) = (objects + batch.len(), sent + bytes);
        answer = engine.restore_objects(batch)?;
    }
}

/// MiB of memory of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4 / 1024
}
