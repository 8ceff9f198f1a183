#include "device/cuda/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/hash.h"

namespace flashcore::cuda {
namespace {

template <class T>
T read_at(std::string_view image, std::uint64_t offset) {
  if (offset > image.size() || image.size() - offset < sizeof(T))
    throw_internal("the compiled kernel is cut short: {} bytes", image.size());
  T value;
  std::memcpy(&value, image.data() + offset, sizeof(T));
  return value;
}

struct Section {
  Elf64_Shdr header;
  std::string_view name, bytes;
};

std::vector<Section> read_sections(std::string_view image) {
  const auto header = read_at<Elf64_Ehdr>(image, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr))
    throw_internal("the compiled kernel is not an ELF64 image");
  std::vector<Section> sections(header.e_shnum);
  for (std::size_t i = 0; i < sections.size(); ++i) {
    Section& section = sections[i];
    section.header = read_at<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr));
    const Elf64_Shdr& at = section.header;
    if (at.sh_type == SHT_NOBITS || at.sh_type == SHT_NULL) continue;
    if (at.sh_offset > image.size() || image.size() - at.sh_offset < at.sh_size)
      throw_internal("the compiled kernel is cut short: {} bytes", image.size());
    section.bytes = image.substr(at.sh_offset, at.sh_size);
  }
  if (header.e_shstrndx >= sections.size()) throw_internal("the compiled kernel has no section names");
  const std::string_view names = sections[header.e_shstrndx].bytes;
  for (Section& section : sections) {
    if (section.header.sh_name >= names.size()) continue;
    const std::string_view rest = names.substr(section.header.sh_name);
    section.name = rest.substr(0, rest.find('\0'));
  }
  return sections;
}

bool is_code(const Section& section) { return section.name.starts_with(".text.") || section.name == ".text"; }
bool is_constant(const Section& section) { return section.name.starts_with(".nv.constant"); }

// ".nv.constant2._Zkernel" -> ".nv.constant2": which bank, whoever's.
std::string_view kind_of(const Section& section) {
  return section.name.substr(0, section.name.find('.', 1 + (is_constant(section) ? 3 : 0)));
}

// A patch at `offset` reads: what kind, how far, and which content its target has (not which name).
std::string describe_relocations(const std::vector<Section>& sections, const Section& relocations) {
  Hasher hasher;
  const bool with_addend = relocations.header.sh_type == SHT_RELA;
  const std::size_t entry = with_addend ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
  if (relocations.header.sh_link >= sections.size())
    throw_internal("the compiled kernel has relocations without symbols");
  const std::string_view symbols = sections[relocations.header.sh_link].bytes;
  for (std::size_t at = 0; at + entry <= relocations.bytes.size(); at += entry) {
    Elf64_Rela patch{};
    std::memcpy(&patch, relocations.bytes.data() + at, entry);
    const auto symbol = read_at<Elf64_Sym>(symbols, ELF64_R_SYM(patch.r_info) * sizeof(Elf64_Sym));
    const std::string_view target =
        symbol.st_shndx < sections.size() ? sections[symbol.st_shndx].bytes : std::string_view();
    hasher.add(fmt::format("{} {} {} {}", patch.r_offset, ELF64_R_TYPE(patch.r_info), patch.r_addend, symbol.st_value))
        .add(target);
  }
  return hasher.hex();
}

}  // namespace

std::string hash_machine_code(std::string_view cubin) {
  const std::vector<Section> sections = read_sections(cubin);
  std::vector<std::string> parts;
  for (const Section& section : sections) {
    if (is_code(section) || is_constant(section)) {
      parts.push_back(Hasher().add(kind_of(section)).add(section.bytes).hex());
    } else if (section.header.sh_type == SHT_RELA || section.header.sh_type == SHT_REL) {
      const std::uint32_t patched = section.header.sh_info;
      if (!section.bytes.empty() && patched < sections.size() &&
          (is_code(sections[patched]) || is_constant(sections[patched])))
        parts.push_back(Hasher().add("relocations").add(describe_relocations(sections, section)).hex());
    }
  }
  if (std::none_of(sections.begin(), sections.end(), is_code))
    throw_internal("the compiled kernel holds no machine code");
  std::sort(parts.begin(), parts.end());  // the file's order follows the symbols' names
  Hasher hasher;
  for (const std::string& part : parts) hasher.add(part);
  return hasher.hex();
}

}  // namespace flashcore::cuda
