// ZIP archives without compression.
//
// An archive is a list of pieces: the data of a file is read in slices for its checksum, and is otherwise left where the
// browser has it. An archive that is read may come from anybody: one error stands for all that can be wrong with it.

const DIRECTORY_BYTES_MAX = 20_000_000;
const ARCHIVE_BYTES_MAX = 2 ** 32 - 1; // of the format, without its extensions
const ENTRIES_MAX = 2 ** 16 - 1; // likewise
const SLICE_BYTES = 2 ** 20;
const [LOCAL, CENTRAL, END] = [0x04034b50, 0x02014b50, 0x06054b50]; // the signatures of its records
const [LOCAL_BYTES, CENTRAL_BYTES, END_BYTES] = [30, 46, 22];
const VERSION = 20;
const HAS_UTF8_NAME = 0x0800;
const STORED = 0; // not compressed
const DAMAGED = "The archive is damaged, or another program has written it. Import it as it was exported.";

const CRC_OF_BYTE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit += 1) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte;
});

async function checksumOf(data) {
  let crc = -1;
  for (let start = 0; start < data.size; start += SLICE_BYTES) {
    const slice = new Uint8Array(await data.slice(start, start + SLICE_BYTES).arrayBuffer());
    for (const byte of slice) crc = (crc >>> 8) ^ CRC_OF_BYTE[(crc ^ byte) & 255];
  }
  return ~crc >>> 0;
}

const u16 = (...numbers) => Uint16Array.from(numbers); // every browser runs on a machine whose bytes are in the order of a ZIP
const u32 = (...numbers) => Uint32Array.from(numbers);

// The archive of [path, Blob] pairs.
export async function zip(entries) {
  const now = new Date();
  const time = (now.getHours() << 11) | (now.getMinutes() << 5) | (now.getSeconds() >> 1);
  const date = ((now.getFullYear() - 1980) << 9) | ((now.getMonth() + 1) << 5) | now.getDate();
  const [files, directory] = [[], []];
  let size = 0;
  for (const [path, data] of entries) {
    const name = new TextEncoder().encode(path);
    const fields = [u16(VERSION, HAS_UTF8_NAME, STORED, time, date), u32(await checksumOf(data), data.size, data.size), u16(name.length, 0)];
    files.push(u32(LOCAL), ...fields, name, data);
    directory.push(u32(CENTRAL), u16(VERSION), ...fields, u16(0, 0, 0), u32(0, size), name);
    size += LOCAL_BYTES + name.length + data.size;
  }
  const directorySize = new Blob(directory).size;
  if (size + directorySize > ARCHIVE_BYTES_MAX || entries.length > ENTRIES_MAX) {
    throw new Error("The files are too large for one archive, which can have 4 GB. Export the conversations one by one.");
  }
  const end = [u32(END), u16(0, 0, entries.length, entries.length), u32(directorySize, size), u16(0)];
  return new Blob([...files, ...directory, ...end], { type: "application/zip" });
}

// The data by path, of an archive that `zip` made.
export const unzip = (archive) => readEntries(archive).catch(() => Promise.reject(new Error(DAMAGED)));

async function readEntries(archive) {
  const viewOf = async (start, end) => new DataView(await archive.slice(start, end).arrayBuffer());
  const end = await viewOf(-END_BYTES);
  const [count, directorySize, directoryStart] = [end.getUint16(10, true), end.getUint32(12, true), end.getUint32(16, true)];
  if (end.getUint32(0, true) !== END || directorySize > DIRECTORY_BYTES_MAX) throw new Error("no directory");
  const directory = await viewOf(directoryStart, directoryStart + directorySize);
  const entries = new Map();
  let [at, total] = [0, 0];
  for (let entry = 0; entry < count; entry += 1) {
    const [crc, size, nameSize] = [directory.getUint32(at + 16, true), directory.getUint32(at + 24, true), directory.getUint16(at + 28, true)];
    const name = new TextDecoder().decode(new Uint8Array(directory.buffer, at + CENTRAL_BYTES, nameSize));
    const start = directory.getUint32(at + 42, true) + LOCAL_BYTES + nameSize;
    const data = archive.slice(start, start + size);
    total += size; // of entries that overlap it would be more than there is
    if (total > archive.size || (await checksumOf(data)) !== crc) throw new Error("another checksum");
    entries.set(name, data);
    at += CENTRAL_BYTES + nameSize;
  }
  return entries;
}
