//! Looks over what a restore has just written, so that the first capture after it is a warm one: the index is made of the
//! entries of the tree, and of nothing else that may lie beside them. Reads names and `stat` only.

use std::os::fd::AsFd;
use std::path::Path;

use holdfast_protocol::object::ObjectId;
use holdfast_protocol::tree::{Body, Leaf};
use rustix::fs::fstat;
use rustix::io::Errno;

use super::beneath::Opened;
use super::list::look;
use super::listing::{Listing, Stamp};
use super::scan::Links;
use super::snapshot::{DirRef, Snapshot};

/// How a root looks now; `None` where that is not what was restored.
pub(super) fn look_over(root: &Path, snapshot: &Snapshot, top: ObjectId) -> Option<(Listing, Links)> {
    let opened = Opened::root(root).ok()?;
    let own = Stamp::of(&fstat(&opened).ok()?);
    let mut look = Look { snapshot, listing: Listing::rooted(own), links: Links::new() };
    look.directory(&DirRef::Node(top), 0, &opened).ok()?;
    Some((look.listing, look.links))
}

struct Look<'a> {
    snapshot: &'a Snapshot,
    listing: Listing,
    links: Links,
}

impl Look<'_> {
    fn directory(&mut self, dir: &DirRef<'_>, index: u32, opened: &Opened) -> Result<(), Errno> {
        for leaf in dir.leaves(&self.snapshot.nodes, &Default::default()) {
            self.leaf(&leaf, index, opened)?;
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: &Leaf, index: u32, opened: &Opened) -> Result<(), Errno> {
        for entry in &leaf.entries {
            let mut listed = look(opened, &entry.name)?;
            let inner = match &entry.body {
                Body::Dir(id) => DirRef::Node(*id),
                Body::DirInline(inner) => DirRef::Inline(inner),
                Body::File { link, .. } => {
                    self.links.extend(link.map(|link| (listed.stamp.inode, link)));
                    self.listing.entries[index as usize].push(listed);
                    continue;
                }
                Body::Symlink(_) => {
                    self.listing.entries[index as usize].push(listed);
                    continue;
                }
            };
            let child = Opened::open(opened.as_fd(), &entry.name)?;
            listed.child = self.listing.add(index, &entry.name, listed.stamp);
            let number = listed.child;
            self.listing.entries[index as usize].push(listed);
            self.directory(&inner, number, &child)?;
        }
        Ok(())
    }
}
