//! The workspace and the conversation of a computer in memory: small enough to check, real enough to be captured,
//! stored, verified and restored like any other. Pure.

use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::{Body, CHUNKER, Content, Entry, Leaf, Manifest, Meta, Node, Root, TREE_FORMAT};
use sha2::{Digest, Sha256};

/// How many turns reached the workspace, and the hash chained over their prompts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Files {
    pub turns: u64,
    pub chain: String,
    pub native: Option<String>,
}

/// The chain that these prompts leave, in this order, each once.
pub fn chain<'a>(prompts: impl IntoIterator<Item = &'a str>) -> String {
    prompts.into_iter().fold(String::new(), |before, prompt| link(&before, prompt))
}

fn link(before: &str, prompt: &str) -> String {
    let digest = Sha256::new().chain_update(before).chain_update([0]).chain_update(prompt).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Files {
    /// A turn has ended well.
    pub fn append(&mut self, prompt: &str) {
        self.turns += 1;
        self.chain = link(&self.chain, prompt);
    }

    /// Every object of the checkpoint, the manifest last.
    pub fn objects(&self) -> Vec<Object> {
        let log = file("log", format!("{} {}", self.turns, self.chain));
        let conversation = file("conversation", format!("{} {}", self.native.as_deref().unwrap_or("-"), self.turns));
        let nodes = [log, conversation].map(|entry| {
            let node = Node::Leaf(Leaf { entries: vec![entry], packs: vec![] });
            Object::new(ObjectKind::Node, node.encode())
        });
        let root = |object: &Object| Root { node: object.id, meta: Meta { mode: 0o755, ..Meta::default() } };
        let manifest =
            Manifest { format: TREE_FORMAT, chunker: CHUNKER, workspace: root(&nodes[0]), native: root(&nodes[1]) };
        let [workspace, native] = nodes;
        vec![workspace, native, Object::new(ObjectKind::Manifest, manifest.encode())]
    }

    /// What a checkpoint of such a computer holds; `find` gives objects by name.
    pub fn read(manifest: ObjectId, find: impl Fn(ObjectId) -> Option<Vec<u8>>) -> Result<Self, String> {
        let bytes = |id| find(id).ok_or_else(|| format!("object {id} is missing"));
        let manifest = Manifest::decode(&bytes(manifest)?).map_err(|error| error.to_string())?;
        let log = text(&bytes(manifest.workspace.node)?)?;
        let conversation = text(&bytes(manifest.native.node)?)?;
        let (turns, chain) = log.split_once(' ').ok_or("the log is no log")?;
        let (native, told) = conversation.split_once(' ').ok_or("the conversation is none")?;
        if told != turns {
            return Err(format!("the files stand at turn {turns}, the conversation at {told}"));
        }
        let turns = turns.parse().map_err(|_| "the log is no log")?;
        Ok(Self { turns, chain: chain.to_owned(), native: (native != "-").then(|| native.to_owned()) })
    }
}

fn file(name: &str, content: String) -> Entry {
    let (size, content) = (content.len() as u64, Content::Inline(content.into_bytes()));
    Entry {
        name: name.as_bytes().to_vec(),
        meta: Meta { mode: 0o644, ..Meta::default() },
        body: Body::File { size, content, link: None },
    }
}

fn text(node: &[u8]) -> Result<String, String> {
    match Node::decode(node).map_err(|error| error.to_string())? {
        Node::Leaf(leaf) => match leaf.entries.into_iter().next().map(|entry| entry.body) {
            Some(Body::File { content: Content::Inline(bytes), .. }) => {
                String::from_utf8(bytes).map_err(|error| error.to_string())
            }
            other => Err(format!("not a file of ours: {other:?}")),
        },
        Node::Split(_) => Err("not a directory of ours".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_reads_back_and_order_shows() {
        let mut files = Files { native: Some("n1".to_owned()), ..Files::default() };
        files.append("a");
        files.append("b");
        let objects = files.objects();
        let find = |id| objects.iter().find(|object| object.id == id).map(|object| object.bytes.clone());
        assert_eq!(Files::read(objects[2].id, find), Ok(files.clone()));
        assert_eq!(files.chain, chain(["a", "b"]));
        assert_ne!(files.chain, chain(["b", "a"]));
        assert_ne!(files.chain, chain(["a", "b", "b"]));
    }
}
