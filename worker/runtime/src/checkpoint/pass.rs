//! One pass over both roots: looks, decides, reads, and makes the manifest. Everybody stands still meanwhile. Writes
//! nothing outside of what it returns.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use holdfast_protocol::exclude::Excludes;
use holdfast_protocol::message::{CaptureLimits, CaptureStats, NewObject, Refusal};
use holdfast_protocol::object::ObjectKind;
use holdfast_protocol::tree::{CHUNKER, Manifest, Root, TREE_FORMAT};

use super::beneath::Opened;
use super::capture::{Files, Walk};
use super::clock::Sealed;
use super::fault;
use super::filter::Filter;
use super::harvest::{Harvest, Side};
use super::known::{Comparison, Known};
use super::listing::{Inode, Listing};
use super::old::OldTree;
use super::reader::Source;
use super::scan::{Links, Scan};
use super::snapshot::Snapshot;
use super::{Base, Roots};

pub(super) struct Pass<'a> {
    pub(super) roots: &'a Roots,
    pub(super) native: &'a Filter,
    pub(super) limits: &'a CaptureLimits,
    pub(super) excludes: &'a Excludes,
    pub(super) base: Option<&'a Base>,
    /// Files that are read whatever they look like; `None` = all.
    pub(super) mapped: &'a Option<HashSet<Inode>>,
}

/// What a pass found.
pub(super) struct Taken {
    pub(super) snapshot: Snapshot,
    pub(super) known: Known,
    pub(super) new: Vec<NewObject>,
    pub(super) source: Source,
}

impl Pass<'_> {
    pub(super) fn run(&self, stats: &mut CaptureStats) -> Result<Taken, Refusal> {
        let (workspace, native) = (open(&self.roots.workspace)?, open(&self.roots.native)?);
        let mut scan = Scan::new(self.limits, stats);
        let workspace = scan.root(&workspace, &Filter::All, self.excludes)?;
        let (files, bytes) = scan.seen();
        let native = scan.root(&native, self.native, &Excludes::credentials())?;
        scan.verdict()?;
        (stats.native_files, stats.native_bytes) = (stats.files - files, stats.bytes - bytes);
        let snapshot = self.base.map(|base| &base.snapshot);
        let mut harvest = Harvest::new(snapshot);
        let workspace_root = self.walk(Side::Workspace, &workspace, &mut harvest, stats)?;
        let native_root = self.walk(Side::Native, &native, &mut harvest, stats)?;
        let manifest =
            Manifest { format: TREE_FORMAT, chunker: CHUNKER, workspace: workspace_root, native: native_root };
        let id = harvest.structure(ObjectKind::Manifest, manifest.encode());
        let Harvest { order, nodes, places, held, .. } = harvest;
        let snapshot = Snapshot::after(snapshot, (id, manifest), nodes, places.keys().copied());
        let ((workspace, workspace_links), (native, native_links)) = (workspace, native);
        let known = Known { listings: [workspace, native], links: [workspace_links, native_links], sealed: None };
        Ok(Taken { snapshot, known, new: order, source: Source::new(places, held) })
    }

    fn walk(
        &self,
        side: Side,
        (listing, links): &(Listing, Links),
        harvest: &mut Harvest<'_>,
        stats: &mut CaptureStats,
    ) -> Result<Root, Refusal> {
        let nothing = HashSet::new();
        let index = side as usize;
        let known = self.base.and_then(|base| Some((&base.snapshot, base.known.as_ref()?)));
        let comparison = match (known, self.mapped) {
            (Some((_, known)), Some(mapped)) => {
                let sealed = known.sealed.unwrap_or_else(Sealed::now);
                let old = (&known.listings[index], &known.links[index], sealed);
                Comparison::new(old, (listing, links), mapped)
            }
            _ => Comparison::blind(listing, &nothing),
        };
        let old = known.map(|(snapshot, known)| {
            let Manifest { workspace, native, .. } = &snapshot.manifest;
            let root = [workspace, native][index];
            (OldTree::new(snapshot, &known.listings[index].dirs, root.node), root)
        });
        let root = match side {
            Side::Workspace => &self.roots.workspace,
            Side::Native => &self.roots.native,
        };
        let files = Files::new(root, listing)?;
        let (limits, shared) = (self.limits, HashMap::new());
        Walk { side, listing, links, comparison, old, harvest, stats, limits, files, shared }.root()
    }
}

fn open(root: &Path) -> Result<Opened, Refusal> {
    let path = root.as_os_str().as_encoded_bytes();
    Opened::root(root).map_err(|errno| fault::refusal(errno, "opening", path))
}
